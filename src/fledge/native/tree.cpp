// The C interface of what a round does with its draft trees. Called from Python through ctypes, for batches on the CPU.
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <vector>

#include "repeats.h"
#include "tree.h"
#include "tree_calls.h"

using namespace fledge;

extern "C" {

// `speculates` [B], null: all of them take drafts.
void fledge_accept(const int64_t* token_ids, const int64_t* parents, const int64_t* depths, const int64_t* chosen,
                   const bool* speculates, int64_t* emits, int64_t* path, int64_t* emitted, int64_t requests,
                   int64_t nodes, int64_t width) {
  for (int64_t b = 0; b < requests; ++b) {
    int64_t at = b * nodes, to = b * width;
    emits[b] = accept_path(token_ids + at, parents + at, depths + at, chosen + at, nodes, !speculates || speculates[b],
                           width, path + to, emitted + to);
  }
}

// `counts` [B], null: every tree has all its nodes.
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

// The verify's R rows: nodes `picked` [R] of all B * N, null: all of them. An empty node is token 0.
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

// The rows of the verify's R that are on the accepted paths, end to end, S in all: each one's position and next token,
// where it was verified, and the KV slots it is moved between. `first_row` [B] of the verify.
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

void fledge_advance(const int64_t* emits, const int64_t* tokens, int32_t* length, int64_t* bonus, int32_t* history,
                    int64_t requests, int64_t width, int64_t known) {
  for (int64_t b = 0; b < requests; ++b)
    advance(emits[b], tokens + b * width, width, length + b, bonus + b, history + b * known, known);
}

// Of B requests with `width` rows each the first `counts` [B]: where each request's begin among the R that are left,
// and which of all B * width rows they are, `index` [R].
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

// What a round says of the R `positions` it passed, `row_start` [B + 1]: position p at column p % kept of what is
// pending. Row r's features are at `source` [R], null: at r.
void fledge_keep(const int64_t* tokens, const char* features, const int64_t* source, const int32_t* positions,
                 const int32_t* row_start, int64_t* recent_tokens, char* recent_features, int64_t requests,
                 int64_t kept, int64_t row_bytes) {
  for (int64_t b = 0; kept && b < requests; ++b)
    for (int64_t r = row_start[b]; r < row_start[b + 1]; ++r) {
      int64_t to = b * kept + positions[r] % kept, from = source ? source[r] : r;
      recent_tokens[to] = tokens[r];
      std::memcpy(recent_features + to * row_bytes, features + from * row_bytes, row_bytes);
    }
}

// See `RunningBatch.set_pages`: a request's pages from number `start` on, [count], into row `row` of both page tables.
void fledge_enter_pages(const int32_t* pages, int32_t* page_table, int32_t* head_pages, const int32_t* head_start,
                        int64_t row, int64_t width, int64_t start, int64_t count, int64_t page_size) {
  std::copy_n(pages, count, page_table + row * width + start);
  std::copy_n(pages, count, head_pages + row * width + start - head_start[row] / page_size);
}

// Row `from` of `count` tensors over their row `to`; `places` [count, 2]: where each begins, and the bytes of a row.
void fledge_copy_row(const int64_t* places, int64_t count, int64_t from, int64_t to) {
  for (int64_t n = 0; n < count; ++n) {
    char* rows = reinterpret_cast<char*>(places[2 * n]);
    std::memcpy(rows + to * places[2 * n + 1], rows + from * places[2 * n + 1], places[2 * n + 1]);
  }
}

// Proposals of `count` tokens each, with `log_rates` [longest + 1] by the length reached.
void fledge_find_repeats(const int32_t* history, const int32_t* last, const float* log_rates, int64_t* matched,
                         int64_t* proposed, float* log_probs, int64_t requests, int64_t known, int64_t longest,
                         int64_t count) {
  for (int64_t b = 0; b < requests; ++b) {
    int64_t* tokens = proposed + b * count;
    std::fill(tokens, tokens + count, -1);
    matched[b] = find_repeat(history + b * known, last[b], longest, count, tokens);
    for (int64_t n = 0; n < count; ++n)
      log_probs[b * count + n] = log_rates[matched[b] ? std::min(matched[b] + n, longest) : 0];
  }
}

// See `ProposalMerge.raised`.
void fledge_raise(const int64_t* tokens, const float* scores, const int64_t* parents, const int64_t* proposed,
                  const float* rates, int64_t* agreed, int64_t* number, float* score, float* raised, int64_t requests,
                  int64_t candidates, int64_t topk, int64_t count, int64_t level, int64_t first) {
  for (int64_t b = 0; b < requests; ++b) {
    int64_t at = b * candidates, next = b * count + level - 1;
    Level found{tokens + at, scores + at, parents ? parents + b * (candidates / topk) : nullptr, candidates, topk};
    raise_scores(found, level, first, proposed[next], rates[next], Agreement{agreed + b, number + b, score + b},
                 raised + at);
  }
}

// See `TreeGrowth.expand`: `mask` [B, K] is the old frontier's, everything behind it the new one's, which is the tree's
// `level`-th counted from 0. `rows` number the old frontier's of all requests, end to end.
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

// See `coins` in sampling.py: n keys and positions, one coin each.
void fledge_coins(const int64_t* keys, const int64_t* positions, int64_t* coins, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    uint64_t z = static_cast<uint64_t>(keys[i]) + (static_cast<uint64_t>(positions[i]) + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    coins[i] = static_cast<int64_t>(z ^ (z >> 31));
  }
}

// What the children of a level's frontier [B, K] share, without what the proposals say of it.
void fledge_open_mass(const float* frontier, const float* rates, const int64_t* agreed, const float* score, float* mass,
                      int64_t requests, int64_t topk, int64_t count, int64_t level) {
  for (int64_t b = 0; b < requests; ++b) {
    mass[b] = 0;
    for (int64_t k = 0; k < topk; ++k) mass[b] += std::exp(frontier[b * topk + k]);
    if (rates && level < count && agreed[b] == level) mass[b] -= std::exp(score[b] + rates[b * count + level]);
  }
}

void fledge_fill_slots(const int64_t* proposed, const float* rates, const int64_t* agreed, const int64_t* number,
                       const float* score, int64_t* token_ids, float* scores, int64_t* parents, int64_t requests,
                       int64_t count, int64_t candidates) {
  for (int64_t b = 0; b < requests; ++b) {
    int64_t at = b * count;
    fill_slots(proposed + at, rates + at, count, agreed[b], number[b], score[b], candidates, token_ids + at,
               scores + at, parents + at);
  }
}

// See `ConfidentPlan.nodes`. `calibration` by depth, null: 1. Costs are piecewise linear in the rows: `costs` [P] at
// `known` [P], ascending.
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

}  // extern "C"
