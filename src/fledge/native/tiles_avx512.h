// Block products with AVX-512 bf16 dot products (AMD from Zen 4, Intel from Cooper Lake): the same functions as tiles_amx.h
// has with AMX, on blocks whose lines lie in another order.
#pragma once
#include "int8.h"

namespace fledge {

// Where a block of 16 pairs by 32 columns has a pair's line of 64 bytes, for the left (0) or right (1) half of the columns, in
// elements: pair by pair. So weights are read line after line, which a Zen 4's own prefetcher follows, and half by half it doesn't.
inline int block_offset(int pair, int half) { return pair * 64 + half * 32; }

constexpr int kQueriesAtOnce = 24;  // that attention takes through a split: their scores fit an L1 cache of 32 KB
constexpr bool kPagesInTurn = false;  // how attention asks for pages: see `Upcoming`

// The rows that attention hands out together: no more than it takes at once, so that few rows still keep all threads busy.
inline int rows_per_unit(int group) { return group < kQueriesAtOnce ? kQueriesAtOnce / group : 1; }

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

// How far ahead weights are asked for: time enough for memory to answer. Few rows are faster than memory: there the
// processor's own prefetcher gets furthest when every other line is asked for, and not as far ahead.
constexpr int kFewRows = 5;
inline long bytes_ahead(int rows) { return rows <= kFewRows ? 8192 : 16384; }

// kRows rows by 32 columns held in registers over `steps` steps of 32 k. Step s's weights lie at b(s).
template <int kRows, class Step>
inline void block(const bf16* a, int stride, int steps, Step&& b, float* c, int c_stride, bool add, Ahead& ahead,
                  Turn turn) {
  __m512 sum[kRows][2];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r)
    for (int j = 0; j < 2; ++j)
      sum[r][j] = add ? _mm512_loadu_ps(c + static_cast<size_t>(r) * c_stride + j * 16) : _mm512_setzero_ps();
  for (int s = 0; s < steps; ++s) {
    const bf16* w = b(s);
    const bf16* x = a + s * 32;
    for (int half = 0; half < 2; ++half, w += block_offset(8, 0), x += 16) {
      const char* unit = turn.asks(s) ? ahead.unit() : nullptr;
#pragma GCC unroll 1  // few loads in the code, each with a short stride, for the prefetcher to follow
      for (int pair = 0; pair < 8; ++pair) {
        ask(unit, pair * 2, kRows <= kFewRows ? 1 : 2);
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

// How many of `rows` rows a panel is multiplied with before the next panel: as many each time, as a single row that is left
// over takes as long as three of a group.
constexpr int kMostRowsAtOnce = 3 * kRowGroup;
inline int rows_at_once(int rows, int most = kMostRowsAtOnce) {
  int turns = (rows + most - 1) / most;
  return (rows + turns - 1) / turns;
}

// Any number of rows, in groups.
template <class Step>
inline void blocks(const bf16* a, int stride, int rows, int steps, Step&& b, float* c, int c_stride, bool add,
                   Ahead& ahead) {
  Turn turn{0, (rows + kRowGroup - 1) / kRowGroup};
  for (; rows > 0; ++turn.group) {
    int here = turn.rows(rows);
    switch (here) {
#define FLEDGE_ROWS(n) \
  case n: block<n>(a, stride, steps, b, c, c_stride, add, ahead, turn); break;
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
  int steps = inputs / 32, groups = (rows + kRowGroup - 1) / kRowGroup;
  constexpr int kChunk = 6;  // 12 KB of weights
  int chunk = groups > 1 ? kChunk : steps;
  for (int first = 0; first < steps; first += chunk) {
    int here = steps - first < chunk ? steps - first : chunk;
    blocks(a + first * 32, stride, rows, here, [&](int s) { return b + static_cast<size_t>(first + s) * 1024; }, c,
           c_stride, first > 0, ahead);
  }
}

// out [rows, width] = weights [rows, 32 * count] times the blocks' values, block k's [32, width] in value layout at
// values(k); added to what is there if `add`.
template <class Values>
void multiply_values(const bf16* weights, int stride, int rows, int count, Values&& values, float* out, int width,
                     bool add) {
  Ahead nothing;
  for (int column = 0; column < width; column += 32)
    blocks(weights, stride, rows, count, [&](int k) { return values(k) + column * 32; }, out + column, width, add,
           nothing);
}

}  // namespace fledge
