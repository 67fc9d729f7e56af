// Draft trees: which candidates become a level, a tree, an accepted path, and rows of a verify.
//
// A tree grows level by level. Every node of the frontier, the `topk` best of the last level, gets `topk` children, and
// all of them stay candidates for the tree:
//
//     root  --  level 0: topk candidates  --  level 1: topk * topk candidates  --  ...  --  own: lookup's (lookup.cpp)
//
// Candidates are numbered in that order, the root being 0. A tree takes the best of them and numbers them anew, parents
// before children. A mask is one 64-bit integer: bit n stands for node n, a node's own bit included.
#include "tree.h"

#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

#include "kv_pages.h"

using namespace fledge;

namespace {

struct Nodes {  // of one tree, [N] each, parents before children; see `DraftTree`
  int64_t *token_ids, *parents, *depths, *mask;
  float* log_probs;
};

struct Candidates {  // of one request
  const int64_t* token_ids;  // [1 + C]
  const float* scores;       // [C], cumulative log probabilities of candidates 1 .. C
  const int64_t* depths;     // [1 + C]
  const int64_t* expanded;   // [E], the candidate to which each group of `topk` children belongs
  const int64_t* own;        // [M], parents of the last M candidates
  int64_t count, groups, owned, topk;  // C, E, M

  int64_t parent(int64_t candidate) const {
    int64_t slot = candidate - (1 + count - owned);
    if (slot >= 0) return own[slot];
    return candidate ? expanded[std::min((candidate - 1) / topk, groups - 1)] : 0;
  }
};

// Orders places in `scores`, best first: as torch sorts, NaN above all; among equals lower places, which may be
// parents.
struct Better {
  const float* scores;

  bool operator()(int64_t a, int64_t b) const {
    float x = scores[a], y = scores[b];
    if (x > y || (std::isnan(x) && !std::isnan(y))) return true;
    return !(y > x || (std::isnan(y) && !std::isnan(x))) && a < b;
  }
};

// Walks down the tree as long as a node is what its parent chose. Returns how many tokens are emitted, the bonus token
// included. path [width] and emitted [width] hold valid nodes and tokens beyond them, too.
int64_t accept_path(const int64_t* token_ids, const int64_t* parents, const int64_t* depths,
                    const int64_t* chosen, int64_t nodes, bool speculates, int64_t width, int64_t* path,
                    int64_t* emitted) {
  bool on[kMostNodes] = {true};
  int64_t deepest = 0;
  for (int64_t d = 0; d < width; ++d) path[d] = d;
  for (int64_t n = 1; speculates && n < nodes; ++n) {
    on[n] = on[parents[n]] && token_ids[n] == chosen[parents[n]];
    if (!on[n]) continue;
    path[depths[n]] = n;
    deepest = std::max(deepest, depths[n]);
  }
  for (int64_t d = 0; d < width; ++d) emitted[d] = chosen[path[d]];
  return deepest + 1;
}

// The tree of the root and the best `wanted` candidates; the nodes left over are empty. `order` [C] is scratch.
void select_nodes(const Candidates& c, int64_t wanted, int64_t nodes, int64_t* order, const Nodes& out) {
  for (int64_t n = 0; n < c.count; ++n) order[n] = n + 1;
  if (wanted < c.count) std::nth_element(order, order + wanted, order + c.count, Better{c.scores - 1});
  std::sort(order, order + wanted);
  for (int64_t n = 0; n < nodes; ++n) {
    bool empty = n > wanted;
    int64_t number = n == 0 || empty ? 0 : order[n - 1];
    int64_t above = c.parent(number);
    int64_t parent = above ? std::lower_bound(order, order + std::min(n, wanted), above) - order + 1 : 0;
    out.parents[n] = n ? parent : -1;
    out.mask[n] = int64_t(uint64_t(1) << n) | (n ? out.mask[parent] : 0);
    out.token_ids[n] = empty ? -1 : c.token_ids[number];
    out.depths[n] = empty ? 1 : c.depths[number];
    out.log_probs[n] = empty ? -std::numeric_limits<float>::infinity() : number ? c.scores[number - 1] : 0.0f;
  }
}

}  // namespace

extern "C" {

// See `TreeGrowth.expand`: the topk best of children [B, K * K] become the new frontier, the tree's level `level`
// (from 0). `mask` [B, K] is the old frontier's, what follows it the new one's; `rows` are the places of the new
// nodes' parents in the old frontier, which has B * K.
void fledge_frontier(const int64_t* children, const float* scores, const int64_t* mask, int64_t* tokens,
                     float* frontier, int64_t* masks, int64_t* numbers, int64_t* rows, int64_t requests, int64_t topk,
                     int64_t level) {
  int64_t candidates = topk * topk, first = 1 + topk + (level - 1) * candidates;
  std::vector<int64_t> order(candidates);
  for (int64_t b = 0; b < requests; ++b) {
    const float* mine = scores + b * candidates;
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + topk, order.end(), Better{mine});
    for (int64_t k = 0; k < topk; ++k) {
      int64_t best = order[k], at = b * topk + k, parent = b * topk + best / topk;
      tokens[at] = children[b * candidates + best];
      frontier[at] = mine[best];
      masks[at] = mask[parent] | int64_t(uint64_t(1) << (level * topk + k));
      numbers[at] = first + best;
      rows[at] = parent;
    }
  }
}

// See `TreeGrowth.open_mass`: the probability that the children of a level's frontier [B, K] share, less that of
// lookup's next token, which is a candidate already.
void fledge_open_mass(const float* frontier, const float* rates, const int64_t* agreed, const float* score, float* mass,
                      int64_t requests, int64_t topk, int64_t count, int64_t level) {
  for (int64_t b = 0; b < requests; ++b) {
    mass[b] = 0;
    for (int64_t k = 0; k < topk; ++k) mass[b] += std::exp(frontier[b * topk + k]);
    if (rates && level < count && agreed[b] == level) mass[b] -= std::exp(score[b] + rates[b * count + level]);
  }
}

// See `ConfidentPlan.nodes`: how many of its candidates [B, C] are verified for each request, at most `most`: as many
// of the most probable ones of all requests as bring more tokens than the verify's time is worth. `calibration` [by
// depth] multiplies probabilities, null: 1. `costs` [P] of `known` [P] rows, see `cost_of`.
void fledge_share_out(const float* scores, const float* calibration, const int64_t* depths, const int64_t* known,
                      const double* costs, int64_t* counts, int64_t requests, int64_t candidates, int64_t most,
                      int64_t points) {
  struct Node {
    float worth;
    int64_t request;
  };
  most = std::min(most, candidates);
  std::vector<Node> best;
  std::vector<float> worth(candidates);
  for (int64_t b = 0; b < requests; ++b) {
    for (int64_t n = 0; n < candidates; ++n)
      worth[n] = std::exp(scores[b * candidates + n]) * (calibration ? calibration[depths[n]] : 1.0f);
    std::partial_sort(worth.begin(), worth.begin() + most, worth.end(), std::greater<float>());
    for (int64_t n = 0; n < most; ++n) best.push_back(Node{worth[n], b});
    counts[b] = 0;
  }
  std::stable_sort(best.begin(), best.end(), [](const Node& a, const Node& b) { return a.worth > b.worth; });
  double gain = 0, largest = -cost_of(known, costs, points, requests);
  int64_t count = 0;
  for (int64_t n = 0; n < int64_t(best.size()) && best[n].worth > 0; ++n) {
    gain += best[n].worth;
    double left = gain - cost_of(known, costs, points, requests + n + 1);
    if (left > largest) largest = left, count = n + 1;
  }
  for (int64_t n = 0; n < count; ++n) ++counts[best[n].request];
}

// See `TreeGrowth.select`. `counts` [B]: nodes below the root; null: every tree has all its nodes.
void fledge_select(const int64_t* candidate_ids, const float* scores, const int64_t* candidate_depths,
                   const int64_t* expanded, const int64_t* own, const int64_t* counts, int64_t* token_ids,
                   int64_t* parents, int64_t* depths, int64_t* mask, float* log_probs, int64_t requests,
                   int64_t candidates, int64_t groups, int64_t owned, int64_t topk, int64_t nodes) {
  std::vector<int64_t> order(candidates);
  for (int64_t b = 0; b < requests; ++b) {
    Candidates c{candidate_ids + b * (1 + candidates), scores + b * candidates, candidate_depths,
                 expanded + b * groups, own + b * owned, candidates, groups, owned, topk};
    int64_t at = b * nodes, wanted = counts ? std::min(counts[b], nodes - 1) : nodes - 1;
    select_nodes(c, wanted, nodes, order.data(),
                 Nodes{token_ids + at, parents + at, depths + at, mask + at, log_probs + at});
  }
}

// See `round.some_rows`: of B requests with `width` rows each only the first `counts` [B] are kept, R in all. Where
// each request's begin among these (`row_start` [B + 1], `first` [B]), and which of all B * width rows they are
// (`index` [R]).
void fledge_some_rows(const int64_t* counts, int32_t* row_start, int64_t* first, int64_t* index, int64_t requests,
                      int64_t width) {
  int64_t row = 0;
  row_start[0] = 0;
  for (int64_t b = 0; b < requests; ++b) {
    first[b] = row;
    for (int64_t n = 0; n < counts[b]; ++n) index[row++] = b * width + n;
    row_start[b + 1] = static_cast<int32_t>(row);
  }
}

// See `round.verify_rows`: R rows of a verify, which are the nodes `picked` [R] of all B * N; null: all of them. An
// empty node is token 0.
void fledge_verify_rows(const int64_t* token_ids, const int64_t* depths, const int64_t* mask, const int32_t* length,
                        const int64_t* picked, int32_t* tokens, int32_t* positions, int64_t* masks, int64_t rows,
                        int64_t nodes) {
  for (int64_t r = 0; r < rows; ++r) {
    int64_t n = picked ? picked[r] : r;
    tokens[r] = static_cast<int32_t>(std::max<int64_t>(token_ids[n], 0));
    positions[r] = static_cast<int32_t>(length[n / nodes] + depths[n]);
    masks[r] = mask[n];
  }
}

// See `round.accept`. `speculates` [B], null: all requests take drafts.
void fledge_accept(const int64_t* token_ids, const int64_t* parents, const int64_t* depths, const int64_t* chosen,
                   const bool* speculates, int64_t* emits, int64_t* path, int64_t* emitted, int64_t requests,
                   int64_t nodes, int64_t width) {
  for (int64_t b = 0; b < requests; ++b) {
    int64_t at = b * nodes, to = b * width;
    emits[b] = accept_path(token_ids + at, parents + at, depths + at, chosen + at, nodes, !speculates || speculates[b],
                           width, path + to, emitted + to);
  }
}

// See `round.path_rows`: the S rows of the verify that are on accepted paths, end to end: each one's position and next
// token, which row of the verify it was (`source`), and between which KV slots it moves. `first_row` [B] of the verify.
void fledge_path_rows(const int64_t* emits, const int64_t* path, const int64_t* emitted, const int32_t* length,
                      const int64_t* first_row, const int32_t* page_table, int32_t* row_start, int64_t* last,
                      int32_t* positions, int32_t* tokens, int64_t* source, int64_t* from, int64_t* to,
                      int64_t requests, int64_t width, int64_t pages, int64_t page_size) {
  int64_t row = 0;
  row_start[0] = 0;
  for (int64_t b = 0; b < requests; ++b) {
    const int32_t* table = page_table + b * pages;
    auto slot = [&](int64_t index) { return table[index / page_size] * page_size + index % page_size; };
    for (int64_t d = 0; d < emits[b]; ++d, ++row) {
      int64_t node = path[b * width + d];
      positions[row] = static_cast<int32_t>(length[b] + d);
      tokens[row] = static_cast<int32_t>(emitted[b * width + d]);
      source[row] = first_row[b] + node;
      from[row] = slot(length[b] + node);
      to[row] = slot(length[b] + d);
    }
    row_start[b + 1] = static_cast<int32_t>(row);
    last[b] = row - 1;
  }
}

}  // extern "C"
