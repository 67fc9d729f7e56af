// A softmax's exponentials, in place of its scores.
#pragma once
#include <type_traits>

#include "vector_math.h"

namespace fledge {

// Four vectors' maxima or sums, side by side in every quarter of the result: each vector's numbers meet in the same order,
// whatever the others are.
template <class Fold>
inline __m512 fold_four(const __m512* v, Fold fold) {
  __m512 a = fold(_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpackhi_ps(v[0], v[1]));
  __m512 b = fold(_mm512_unpacklo_ps(v[2], v[3]), _mm512_unpackhi_ps(v[2], v[3]));
  __m512d x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);
  a = fold(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
  a = fold(a, _mm512_shuffle_f32x4(a, a, 0x4e));
  return fold(a, _mm512_shuffle_f32x4(a, a, 0xb1));
}

// Weighs the scores of up to four queries that see the same sequence: exp(scale * (s - max)) for the first `count`, 0 up
// to `padded`. The weights take the place of the scores; a query's begin `stride` floats behind the one before.
template <int kQueries, class Meanwhile>
inline void soften_some(float* scores, size_t stride, int count, int padded, float scale, float* max, float* sum,
                        Meanwhile& meanwhile) {
  int full = count / 32 * 32, padding = padded - (count + 31) / 32 * 32;
  auto live = [&](int i) {
    int left = count - i;
    return left >= 16 ? __mmask16(0xffff) : (left <= 0 ? __mmask16(0) : static_cast<__mmask16>((1u << left) - 1));
  };
  constexpr __mmask8 kAll = (1 << kQueries) - 1;
  __m512 best[4], high[kQueries], total[4];
  for (int q = 0; q < 4; ++q) best[q] = _mm512_set1_ps(-INFINITY), total[q] = _mm512_setzero_ps();
  auto compare = [&](int i, __mmask16 a, __mmask16 b) {
#pragma GCC unroll 4
    for (int q = 0; q < kQueries; ++q) {
      const float* s = scores + q * stride + i;
      best[q] = _mm512_mask_max_ps(best[q], a, best[q], _mm512_loadu_ps(s));
      best[q] = _mm512_mask_max_ps(best[q], b, best[q], _mm512_loadu_ps(s + 16));
    }
  };
  for (int i = 0; i < full; i += 32) compare(i, 0xffff, 0xffff);
  if (full < count) compare(full, live(full), live(full + 16));
  constexpr float kLog2e = 1.44269504f;
  __m512 factor = _mm512_set1_ps(scale * kLog2e);
  __m512 scaled = _mm512_mul_ps(fold_four(best, [](__m512 a, __m512 b) { return _mm512_max_ps(a, b); }), _mm512_set1_ps(scale));
  _mm_mask_storeu_ps(max, kAll, _mm512_castps512_ps128(scaled));
  scaled = _mm512_mul_ps(scaled, _mm512_set1_ps(kLog2e));
#pragma GCC unroll 4
  for (int q = 0; q < kQueries; ++q) high[q] = _mm512_permutevar_ps(scaled, _mm512_set1_epi32(q));
  auto weigh = [&](int i, __mmask16 a, __mmask16 b) {
    meanwhile.ask(1);
#pragma GCC unroll 4
    for (int q = 0; q < kQueries; ++q) {
      float* s = scores + q * stride;
      __m512 x = _mm512_maskz_mov_ps(a, exp2_roughly(_mm512_fmsub_ps(_mm512_loadu_ps(s + i), factor, high[q])));
      __m512 y = _mm512_maskz_mov_ps(b, exp2_roughly(_mm512_fmsub_ps(_mm512_loadu_ps(s + i + 16), factor, high[q])));
      total[q] = _mm512_add_ps(total[q], _mm512_add_ps(x, y));
      _mm512_storeu_si512(reinterpret_cast<bf16*>(s) + i, (__m512i)_mm512_cvtne2ps_pbh(y, x));
    }
  };
  for (int i = 0; i < full; i += 32) weigh(i, 0xffff, 0xffff);
  if (full < count) weigh(full, live(full), live(full + 16));
  for (int q = 0; padding > 0 && q < kQueries; ++q)
    std::memset(reinterpret_cast<bf16*>(scores + q * stride) + padded - padding, 0, padding * sizeof(bf16));
  __m512 sums = fold_four(total, [](__m512 a, __m512 b) { return _mm512_add_ps(a, b); });
  _mm_mask_storeu_ps(sum, kAll, _mm512_castps512_ps128(sums));
}

// The same for any number of queries: a few at once, so that none waits for its own sums.
template <class Meanwhile>
inline void soften(float* scores, size_t stride, int queries, int count, int padded, float scale, float* max, float* sum,
                   Meanwhile& meanwhile) {
  if (count <= 0) {
    for (int q = 0; q < queries; ++q) {
      std::memset(scores + q * stride, 0, padded * sizeof(bf16));
      max[q] = -INFINITY;
      sum[q] = 0;
    }
    return;
  }
  for (int q = 0; q < queries; q += 4) {
    auto weigh = [&](auto number) {
      soften_some<number>(scores + q * stride, stride, count, padded, scale, max + q, sum + q, meanwhile);
    };
    if (queries - q >= 4) weigh(std::integral_constant<int, 4>{});
    else if (queries - q == 3) weigh(std::integral_constant<int, 3>{});
    else if (queries - q == 2) weigh(std::integral_constant<int, 2>{});
    else weigh(std::integral_constant<int, 1>{});
  }
}

}  // namespace fledge
