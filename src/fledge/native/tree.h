// What a round does with one request's draft tree between the forwards. The tensors' meaning: engine/native_tree.py;
// each function's reference is the torch code of the same name's caller in the engine.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace fledge {

constexpr int64_t kMostNodes = 64;  // a mask is one 64-bit integer

struct Nodes {  // [N] each, parents before children
  int64_t *token_ids, *parents, *depths, *mask;
  float* log_probs;
};

struct Candidates {  // of one request; candidate 0 is the root
  const int64_t* token_ids;  // [1 + C]
  const float* scores;       // [C], of candidates 1 .. C
  const int64_t* depths;     // [1 + C]
  const int64_t* expanded;   // [E], the candidate each group of `topk` children belongs to
  const int64_t* own;        // [M], parents of the last M candidates
  int64_t count, groups, owned, topk;

  int64_t parent(int64_t candidate) const {
    int64_t slot = candidate - (1 + count - owned);
    if (slot >= 0) return own[slot];
    return candidate ? expanded[std::min((candidate - 1) / topk, groups - 1)] : 0;
  }
};

// Orders places in `scores`: NaN above all, and lower places, which may be parents, first among equals.
struct Better {
  const float* scores;

  bool operator()(int64_t a, int64_t b) const {
    float x = scores[a], y = scores[b];
    if (x > y || (std::isnan(x) && !std::isnan(y))) return true;
    return !(y > x || (std::isnan(y) && !std::isnan(x))) && a < b;
  }
};

// Walks the tree as far as its nodes are what their parents chose. Returns how many tokens are emitted; path [width]
// and emitted [width] are valid beyond them as well.
inline int64_t accept_path(const int64_t* token_ids, const int64_t* parents, const int64_t* depths,
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

// The root and the best `wanted` candidates as a tree; the nodes left over are empty. `order` [C] is scratch.
inline void select_nodes(const Candidates& c, int64_t wanted, int64_t nodes, int64_t* order, const Nodes& out) {
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

// What `rows` rows cost: linear between the points and beyond the last two, and no less than at the first.
inline double cost_of(const int64_t* known, const double* costs, int64_t points, int64_t rows) {
  if (points == 1 || rows <= known[0]) return costs[0];
  int64_t right = std::min(std::lower_bound(known, known + points, rows) - known, points - 1);
  double slope = (costs[right] - costs[right - 1]) / double(known[right] - known[right - 1]);
  return costs[right - 1] + slope * double(rows - known[right - 1]);
}

// Makes the first `emits` of a round's `tokens` [width] part of a request: its history [known] begins at position 0.
inline void advance(int64_t emits, const int64_t* tokens, int64_t width, int32_t* length, int64_t* bonus,
                    int32_t* history, int64_t known) {
  for (int64_t n = 0; known && n < width; ++n)
    history[std::min(*length + 1 + n, known - 1)] = static_cast<int32_t>(tokens[n]);
  *length += static_cast<int32_t>(emits);
  *bonus = tokens[emits - 1];
}

}  // namespace fledge
