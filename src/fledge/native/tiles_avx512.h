// Block products with AVX-512 bf16 dot products (AMD from Zen 4, Intel from Cooper Lake): the same functions, on the
// same layouts, as tiles_amx.h has with AMX.
#pragma once
#include "int8.h"

namespace fledge {

constexpr int kQueriesAtOnce = 48;  // that attention takes through a split

inline bool request_tiles() { return true; }
inline void configure_tiles() {}
inline void release_tiles() {}

// There are none: see tiles_amx.h.
inline bool multiply_int8_tiles(const Int8Rows&, int, int, const uint8_t*, const float*, int, float*, Ahead) { return false; }

inline __m512bh load_pairs(const bf16* p) { return (__m512bh)_mm512_loadu_si512(p); }
inline __m512bh broadcast_pair(const bf16* p) {
  int32_t pair;
  std::memcpy(&pair, p, 4);
  return (__m512bh)_mm512_set1_epi32(pair);
}

// kRows rows by kColumns * 16 columns held in registers over `steps` steps of 32 k. Step s's weights for column group j
// lie at b(s) + j * 512.
template <int kRows, int kColumns, class Step>
inline void block(const bf16* a, int stride, int steps, Step&& b, float* c, int c_stride, bool add, Ahead& ahead) {
  __m512 sum[kRows][kColumns];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int j = 0; j < kColumns; ++j)
      sum[r][j] = add ? _mm512_loadu_ps(c + static_cast<size_t>(r) * c_stride + j * 16) : _mm512_setzero_ps();
  for (int s = 0; s < steps; ++s) {
    const bf16* w = b(s);
    const bf16* x = a + s * 32;
    for (int pair = 0; pair < 16; ++pair) {
      ahead.ask(2);
      __m512bh columns[kColumns];
#pragma GCC unroll 4
      for (int j = 0; j < kColumns; ++j) columns[j] = load_pairs(w + j * 512 + pair * 32);
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
        __m512bh v = broadcast_pair(x + static_cast<size_t>(r) * stride + pair * 2);
#pragma GCC unroll 4
        for (int j = 0; j < kColumns; ++j) sum[r][j] = _mm512_dpbf16_ps(sum[r][j], v, columns[j]);
      }
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int j = 0; j < kColumns; ++j) _mm512_storeu_ps(c + static_cast<size_t>(r) * c_stride + j * 16, sum[r][j]);
}

// Rows that fit the 32 registers beside the weights.
template <int kColumns>
constexpr int kRowGroup = kColumns == 2 ? 12 : 6;

// Any number of rows, in groups.
template <int kColumns, class Step>
inline void blocks(const bf16* a, int stride, int rows, int steps, Step&& b, float* c, int c_stride, bool add,
                   Ahead& ahead) {
  constexpr int kMost = kRowGroup<kColumns>;
  while (rows > 0) {
    int groups = (rows + kMost - 1) / kMost, here = (rows + groups - 1) / groups;
    switch (here) {
#define FLEDGE_ROWS(n) \
  case n: block<n <= kMost ? n : 1, kColumns>(a, stride, steps, b, c, c_stride, add, ahead); break;
      FLEDGE_ROWS(1) FLEDGE_ROWS(2) FLEDGE_ROWS(3) FLEDGE_ROWS(4) FLEDGE_ROWS(5) FLEDGE_ROWS(6)
      FLEDGE_ROWS(7) FLEDGE_ROWS(8) FLEDGE_ROWS(9) FLEDGE_ROWS(10) FLEDGE_ROWS(11) FLEDGE_ROWS(12)
#undef FLEDGE_ROWS
    }
    a += static_cast<size_t>(here) * stride;
    c += static_cast<size_t>(here) * c_stride;
    rows -= here;
  }
}

// c [rows, 32] = a [rows, inputs] times one panel. Strides count elements. `ahead` is what to ask for meanwhile.
//
// More rows than the registers hold pass over the panel in groups, a chunk of k at a time, so that the panel's weights are
// fetched into L1 once. The sums are kept in `c` in between, which changes no bit of them.
inline void multiply_panel(const bf16* a, int stride, int rows, const bf16* b, int inputs, float* c, int c_stride,
                           Ahead ahead) {
  int steps = inputs / 32, groups = (rows + kRowGroup<2> - 1) / kRowGroup<2>;
  ahead.rate = (ahead.rate + groups - 1) / groups;  // every group of rows asks for its part
  constexpr int kChunk = 6;  // 12 KB of weights
  int chunk = groups > 1 ? kChunk : steps;
  for (int first = 0; first < steps; first += chunk) {
    int here = steps - first < chunk ? steps - first : chunk;
    blocks<2>(a + first * 32, stride, rows, here, [&](int s) { return b + static_cast<size_t>(first + s) * 1024; }, c,
              c_stride, first > 0, ahead);
  }
}

// out [rows, width] = weights [rows, 32 * count] times the blocks' values, block k's [32, width] in value layout at
// values(k); added to what is there if `add`.
template <class Values>
void multiply_values(const bf16* weights, int stride, int rows, int count, Values&& values, float* out, int width,
                     bool add) {
  Ahead nothing;
  int column = 0;
  auto block_values = [&](int k) { return values(k) + column / 16 * 512; };
  for (; column + 64 <= width; column += 64)
    blocks<4>(weights, stride, rows, count, block_values, out + column, width, add, nothing);
  for (; column < width; column += 32)
    blocks<2>(weights, stride, rows, count, block_values, out + column, width, add, nothing);
}

}  // namespace fledge
