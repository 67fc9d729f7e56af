// Attention's softmax, in place: float scores become bf16 weights, which the caller divides by their sum in the end.
#pragma once
#include <type_traits>

#include "vector_math.h"

namespace fledge {

// Reduces four vectors at once, to their maxima or sums: lane q of every quarter of the result is vector q's. A
// vector's lanes are combined in the same order whatever the other vectors hold.
template <class Fold>
inline __m512 fold_four(const __m512* v, Fold fold) {
  __m512 a = fold(_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpackhi_ps(v[0], v[1]));
  __m512 b = fold(_mm512_unpacklo_ps(v[2], v[3]), _mm512_unpackhi_ps(v[2], v[3]));
  __m512d x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);
  a = fold(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
  a = fold(a, _mm512_shuffle_f32x4(a, a, 0x4e));
  return fold(a, _mm512_shuffle_f32x4(a, a, 0xb1));
}

// The softmax of kQueries (1 to 4) queries that see the same `count` keys: weights exp(scale * (s - max)), and 0 from
// there up to `padded`, with their `max` and `sum`. The weights of a query take the place of its scores; the next
// query's begin `stride` floats further on. Pages are prefetched meanwhile: prefetch.advance(1) stands for 32 keys.
template <int kQueries, class Prefetcher>
inline void softmax_few(float* scores, size_t stride, int count, int padded, float scale, float* max, float* sum,
                        Prefetcher& prefetch) {
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
  __m512 scaled = fold_four(best, [](__m512 a, __m512 b) { return _mm512_max_ps(a, b); });
  scaled = _mm512_mul_ps(scaled, _mm512_set1_ps(scale));
  _mm_mask_storeu_ps(max, kAll, _mm512_castps512_ps128(scaled));
  scaled = _mm512_mul_ps(scaled, _mm512_set1_ps(kLog2e));
#pragma GCC unroll 4
  for (int q = 0; q < kQueries; ++q) high[q] = _mm512_permutevar_ps(scaled, _mm512_set1_epi32(q));
  auto weigh = [&](int i, __mmask16 a, __mmask16 b) {
    prefetch.advance(1);
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

// The same for any number of queries: four at once, to hide the latency of each one's chain of additions.
template <class Prefetcher>
inline void softmax_rows(float* scores, size_t stride, int queries, int count, int padded, float scale, float* max,
                         float* sum, Prefetcher& prefetch) {
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
      softmax_few<number>(scores + q * stride, stride, count, padded, scale, max + q, sum + q, prefetch);
    };
    if (queries - q >= 4) weigh(std::integral_constant<int, 4>{});
    else if (queries - q == 3) weigh(std::integral_constant<int, 3>{});
    else if (queries - q == 2) weigh(std::integral_constant<int, 2>{});
    else weigh(std::integral_constant<int, 1>{});
  }
}

}  // namespace fledge
