// The C interface of what a round does with its draft trees. Called from Python through ctypes, for batches on the CPU.
#include <cmath>
#include <cstring>
#include <vector>

#include "repeats.h"
#include "tree.h"

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

// What a plain round says of position L of each request, at column L % kept of what is pending.
void fledge_keep(const int64_t* chosen, const char* features, const int32_t* length, int64_t* recent_tokens,
                 char* recent_features, int64_t requests, int64_t kept, int64_t row_bytes) {
  for (int64_t b = 0; kept && b < requests; ++b) {
    int64_t to = b * kept + length[b] % kept;
    recent_tokens[to] = chosen[b];
    std::memcpy(recent_features + to * row_bytes, features + b * row_bytes, row_bytes);
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

// Where the level's candidates name a proposal's next token, -1: nowhere; and in opinions [2, B] the log probabilities
// of that token given those before it, the proposal's and the head's. See `follow.py` for the other tensors.
void fledge_follow(const int64_t* tokens, const float* scores, const int64_t* parents, const int64_t* proposed,
                   const float* rates, const int64_t* number, const float* score, int64_t* place, float* opinions,
                   int64_t requests, int64_t candidates, int64_t topk, int64_t count, int64_t level) {
  for (int64_t b = 0; b < requests; ++b) {
    int64_t at = b * candidates, next = b * count + level - 1;
    Level found{tokens + at, scores + at, parents ? parents + b * (candidates / topk) : nullptr, candidates, topk};
    place[b] = find_child(found, number[b], proposed[next]);
    opinions[b] = rates[next];
    opinions[requests + b] = place[b] < 0 ? kNever : scores[at + place[b]] - score[b];
  }
}

// The level's scores with the proposal's, and how far the tree and the proposal go together now. `rest` [2, B]: what
// the opinions leave for others, as logarithms; the candidates are numbered from `first` on.
void fledge_raise(const int64_t* tokens, const float* scores, const int64_t* parents, const int64_t* place,
                  const float* opinions, const float* rest, int64_t* agreed, int64_t* number, float* score,
                  float* raised, int64_t requests, int64_t candidates, int64_t topk, int64_t level, int64_t first) {
  for (int64_t b = 0; b < requests; ++b) {
    int64_t at = b * candidates;
    Level found{tokens + at, scores + at, parents ? parents + b * (candidates / topk) : nullptr, candidates, topk};
    float others = std::min(rest[b] - rest[requests + b], 0.0f);
    float own = score[b] + std::max(opinions[b], opinions[requests + b]);
    raise_scores(found, number[b], place[b], own, others, raised + at);
    if (place[b] < 0) continue;
    agreed[b] = level;
    number[b] = first + place[b];
    score[b] = own;
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

}  // extern "C"
