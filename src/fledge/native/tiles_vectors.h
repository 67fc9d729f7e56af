// Products with one panel, by vectors. tiles_amx.h has the same functions for AMX; the lines within a block lie in
// another order there. The microkernel is `block`, which multiplies a few rows: in block_bf16.h for processors with
// AVX-512 bf16, in block_float.h for all others.
#pragma once
#include "prefetch.h"
#include "vector_math.h"

namespace fledge {

// Where a pair's line of 64 bytes begins in a block (see gemm.h), in elements; half 0 is outputs 0-15, half 1 outputs
// 16-31. Both halves of a pair lie side by side, so that weights are read line after line: a Zen 4's hardware
// prefetcher follows that, and doesn't follow two tiles in turn.
inline int block_offset(int pair, int half) { return pair * 64 + half * 32; }

}  // namespace fledge

#ifdef __AVX512BF16__
#include "block_bf16.h"
#else
#include "block_float.h"
#endif

namespace fledge {

constexpr int kQueriesAtOnce = 24;  // in attention; their scores of a split fit an L1 cache of 32 KB
constexpr bool kInterleavePages = false;  // see `PagePrefetch` in attention.h

// Rows of an attention unit: no more than kQueriesAtOnce queries, so that even few rows give every thread something
// to do.
inline int rows_per_unit(int group) { return group < kQueriesAtOnce ? kQueriesAtOnce / group : 1; }

inline bool request_tiles() { return true; }
inline void configure_tiles() {}
inline void release_tiles() {}

// How far ahead weights are prefetched, in bytes: few rows, which are bound by memory, less far. And whether lines that
// won't be reused are prefetched apart (`prefetch_passing` in prefetch.h).
constexpr int kFewRows = 5;
inline long prefetch_distance(int rows) { return rows <= kFewRows ? 8192 : 16384; }
#ifdef __x86_64__
constexpr bool kPassing = true;
#else
constexpr bool kPassing = false;
#endif

// How many of `rows` rows go over a panel before the next panel is read. Rows are shared out evenly, as a single one
// left over takes as long as three.
constexpr int kMostRowsAtOnce = 3 * kRowGroup;
inline int rows_at_once(int rows, int most = kMostRowsAtOnce) {
  int turns = (rows + most - 1) / most;
  return (rows + turns - 1) / turns;
}

// `block` for any number of rows, group by group.
template <class Step>
inline void blocks(const bf16* a, int stride, int rows, int steps, Step&& b, float* c, int c_stride, bool add,
                   Prefetch& prefetch) {
  RowGroup group{0, (rows + kRowGroup - 1) / kRowGroup};
  for (; rows > 0; ++group.index) {
    int here = group.rows(rows);
    switch (here) {
#define FLEDGE_ROWS(n)                                                                              \
  case n:                                                                                           \
    if constexpr (n <= kRowGroup) block<n>(a, stride, steps, b, c, c_stride, add, prefetch, group); \
    break;
      FLEDGE_ROWS(1) FLEDGE_ROWS(2) FLEDGE_ROWS(3) FLEDGE_ROWS(4) FLEDGE_ROWS(5) FLEDGE_ROWS(6)
      FLEDGE_ROWS(7) FLEDGE_ROWS(8) FLEDGE_ROWS(9) FLEDGE_ROWS(10) FLEDGE_ROWS(11) FLEDGE_ROWS(12)
#undef FLEDGE_ROWS
    }
    a += static_cast<size_t>(here) * stride;
    c += static_cast<size_t>(here) * c_stride;
    rows -= here;
  }
}

// c [rows, 32] = a [rows, inputs] times one panel. Strides count elements.
//
// With more than one group of rows, or in float, the panel is cut into chunks of k that stay in L1 while all groups pass
// over them. In between, the float sums are kept in `c`, which changes no bit of them.
//
// Always inlined, so that a panel's Prefetch isn't copied for a call.
[[gnu::always_inline]] inline void multiply_panel(const bf16* a, int stride, int rows, const bf16* b, int inputs,
                                                  float* c, int c_stride, Prefetch prefetch) {
  int steps = inputs / 32, groups = (rows + kRowGroup - 1) / kRowGroup;
  int chunk = steps_at_once(steps, groups);
  for (int first = 0; first < steps; first += chunk) {
    int here = steps - first < chunk ? steps - first : chunk;
    blocks(a + first * 32, stride, rows, here, [&](int s) { return b + static_cast<size_t>(first + s) * 1024; }, c,
           c_stride, first > 0, prefetch);
  }
}

// Attention's second product: out [rows, width] = weights [rows, 32 * count] times `count` pages of values [32, width],
// page k's at values(k) (kv_pages.h); added to what is there if `add`.
template <class Values>
void multiply_values(const bf16* weights, int stride, int rows, int count, Values&& values, float* out, int width,
                     bool add) {
  Prefetch nothing;
  for (int column = 0; column < width; column += 32)
    blocks(weights, stride, rows, count, [&](int k) { return values(k) + column * 32; }, out + column, width, add,
           nothing);
}

}  // namespace fledge
