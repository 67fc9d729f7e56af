// Products with one panel, by AVX-512 bf16 dot products (AMD from Zen 4, Intel from Cooper Lake). tiles_amx.h has the
// same functions for AMX; the lines within a block lie in another order there.
//
// The microkernel is `block`: up to 12 rows by 32 outputs are accumulated in 24 of the 32 registers, while a step of
// 32 k is 16 loads of two lines of weights, each followed by one broadcast pair of activations per row:
//
//     sum[row][left], sum[row][right]  +=  x[row][k, k + 1] . (line of outputs 0-15, line of outputs 16-31)
#pragma once
#include "int8.h"

namespace fledge {

// Where a pair's line of 64 bytes begins in a block (see gemm.h), in elements; half 0 is outputs 0-15, half 1 outputs
// 16-31. Both halves of a pair lie side by side, so that weights are read line after line: a Zen 4's hardware
// prefetcher follows that, and doesn't follow two tiles in turn.
inline int block_offset(int pair, int half) { return pair * 64 + half * 32; }

constexpr int kQueriesAtOnce = 24;  // in attention; their scores of a split fit an L1 cache of 32 KB
constexpr bool kInterleavePages = false;  // see `PagePrefetch` in attention.h

// Rows of an attention unit: no more than kQueriesAtOnce queries, so that even few rows give every thread something
// to do.
inline int rows_per_unit(int group) { return group < kQueriesAtOnce ? kQueriesAtOnce / group : 1; }

inline bool request_tiles() { return true; }
inline void configure_tiles() {}
inline void release_tiles() {}

// Without AMX, VNNI multiplies all 8-bit weights.
inline bool multiply_int8_tiles(const Int8Rows&, int, int, const uint8_t*, const float*, int, float*, Prefetch) {
  return false;
}

inline __m512bh load_pairs(const bf16* p) { return (__m512bh)_mm512_loadu_si512(p); }
inline __m512bh broadcast_pair(const bf16* p) {
  int32_t pair;
  std::memcpy(&pair, p, 4);
  return (__m512bh)_mm512_set1_epi32(pair);
}

// How far ahead weights are prefetched, in bytes: few rows, which are bound by memory, less far. And whether lines that
// pass by are told apart (see prefetch.h).
constexpr int kFewRows = 5;
inline long prefetch_distance(int rows) { return rows <= kFewRows ? 8192 : 16384; }
constexpr bool kPassing = true;

// c [kRows, 32] = a [kRows, 32 * steps] times the blocks b(0), b(1), ..., or added to what is there if `add`.
template <int kRows, class Step>
inline void block(const bf16* a, int stride, int steps, Step&& b, float* c, int c_stride, bool add, Prefetch& prefetch,
                  RowGroup group) {
  __m512 sum[kRows][2];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r)
    for (int j = 0; j < 2; ++j)
      sum[r][j] = add ? _mm512_loadu_ps(c + static_cast<size_t>(r) * c_stride + j * 16) : _mm512_setzero_ps();
  for (int s = 0; s < steps; ++s) {
    const bf16* w = b(s);
    const bf16* x = a + s * 32;
    for (int half = 0; half < 2; ++half, w += block_offset(8, 0), x += 16) {
      Lines unit = group.prefetches(s) ? prefetch.next_unit() : Lines{};
#pragma GCC unroll 1  // the hardware prefetcher tells streams apart by the load's address in the code: let there be few
      for (int pair = 0; pair < 8; ++pair) {
        prefetch_lines(unit, pair * 2, 2);
        __m512bh left = load_pairs(w + block_offset(pair, 0)), right = load_pairs(w + block_offset(pair, 1));
#pragma GCC unroll 12
        for (int r = 0; r < kRows; ++r) {
          __m512bh v = broadcast_pair(x + static_cast<size_t>(r) * stride + pair * 2);
          sum[r][0] = _mm512_dpbf16_ps(sum[r][0], v, left);
          sum[r][1] = _mm512_dpbf16_ps(sum[r][1], v, right);
        }
      }
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r)
    for (int j = 0; j < 2; ++j) _mm512_storeu_ps(c + static_cast<size_t>(r) * c_stride + j * 16, sum[r][j]);
}

constexpr int kRowGroup = 12;  // rows whose sums fit the 32 registers beside the weights

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
#define FLEDGE_ROWS(n) \
  case n: block<n>(a, stride, steps, b, c, c_stride, add, prefetch, group); break;
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
// With more than one group of rows the panel is cut into chunks of k that stay in L1 while all groups pass over them.
// In between, the float sums are kept in `c`, which changes no bit of them.
//
// Always inlined, so that a panel's Prefetch isn't copied for a call.
[[gnu::always_inline]] inline void multiply_panel(const bf16* a, int stride, int rows, const bf16* b, int inputs,
                                                  float* c, int c_stride, Prefetch prefetch) {
  int steps = inputs / 32, groups = (rows + kRowGroup - 1) / kRowGroup;
  constexpr int kChunk = 6;  // 12 KB of weights
  int chunk = groups > 1 ? kChunk : steps;
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
