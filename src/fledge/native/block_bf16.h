// The microkernel of tiles_vectors.h by AVX-512 bf16 dot products (AMD from Zen 4, Intel from Cooper Lake).
// block_float.h has the same functions for other processors.
//
// Up to 12 rows by 32 outputs are accumulated in 24 of the 32 registers, while a step of 32 k is 16 loads of two lines
// of weights, each followed by one broadcast pair of activations per row:
//
//     sum[row][left], sum[row][right]  +=  x[row][k, k + 1] . (line of outputs 0-15, line of outputs 16-31)
#pragma once
#include "prefetch.h"
#include "vector_math.h"

namespace fledge {

constexpr int kRowGroup = 12;  // rows whose sums fit the registers beside the weights

// In how many steps several groups of rows pass over a panel before they go on: 12 KB of weights.
inline int steps_at_once(int steps, int groups) { return groups > 1 ? 6 : steps; }

inline __m512bh load_pairs(const bf16* p) { return (__m512bh)_mm512_loadu_si512(p); }
inline __m512bh broadcast_pair(const bf16* p) {
  int32_t pair;
  std::memcpy(&pair, p, 4);
  return (__m512bh)_mm512_set1_epi32(pair);
}

// c [kRows, 32] = a [kRows, 32 * steps] times the blocks b(0), b(1), ..., or added to what is there if `add`.
template <int kRows, class Step>
inline void block(const bf16* a, int stride, int steps, Step&& b, float* c, int c_stride, bool add, Prefetch& prefetch,
                  RowGroup group) {
  Floats sum[kRows][2];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r)
    for (int j = 0; j < 2; ++j)
      sum[r][j] = add ? load(c + static_cast<size_t>(r) * c_stride + j * 16) : zeros();
  for (int s = 0; s < steps; ++s) {
    const bf16* w = b(s);
    const bf16* x = a + s * 32;
    for (int half = 0; half < 2; ++half, w += block_offset(8, 0), x += 16) {
      Lines unit = group.prefetches(s) ? prefetch.next(kPrefetchUnit) : Lines{};
#pragma GCC unroll 1  // the hardware prefetcher separates streams by the load's address in the code: let there be few
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
    for (int j = 0; j < 2; ++j) store(c + static_cast<size_t>(r) * c_stride + j * 16, sum[r][j]);
}

}  // namespace fledge
