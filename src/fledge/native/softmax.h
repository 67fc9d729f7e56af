// Attention's softmax, in place: float scores become bf16 weights, which the caller divides by their sum in the end.
#pragma once
#include <type_traits>

#include "vector_math.h"

namespace fledge {

// The softmax of kQueries (1 to 4) queries that see the same `count` keys: weights exp(scale * (s - max)), and 0 from
// there up to `padded`, with their `max` and `sum`. The weights of a query take the place of its scores; the next
// query's begin `stride` floats further on. Pages are prefetched meanwhile: prefetch.advance(1) stands for 32 keys.
template <int kQueries, class Prefetcher>
inline void softmax_few(float* scores, size_t stride, int count, int padded, float scale, float* max, float* sum,
                        Prefetcher& prefetch) {
  int full = count / 32 * 32, padding = padded - (count + 31) / 32 * 32;
  Floats best[4], top[kQueries], total[4];
  for (int q = 0; q < 4; ++q) best[q] = broadcast(-INFINITY), total[q] = zeros();
  auto compare = [&](int i, Mask first, Mask second) {  // which of the next two times 16 keys there are
#pragma GCC unroll 4
    for (int q = 0; q < kQueries; ++q) {
      const float* s = scores + q * stride + i;
      best[q] = select(first, maximum(best[q], load(s)), best[q]);
      best[q] = select(second, maximum(best[q], load(s + 16)), best[q]);
    }
  };
  const Mask all = first_lanes(16), low = first_lanes(count - full), high = first_lanes(count - full - 16);
  for (int i = 0; i < full; i += 32) compare(i, all, all);
  if (full < count) compare(full, low, high);
  constexpr float kLog2e = 1.44269504f;
  Floats factor = broadcast(scale * kLog2e), scaled = max_of_four(best) * broadcast(scale);
  store_four(max, scaled, kQueries);
  scaled = scaled * broadcast(kLog2e);
#pragma GCC unroll 4
  for (int q = 0; q < kQueries; ++q) top[q] = broadcast_lane(scaled, q);
  auto weigh = [&](int i, Mask first, Mask second) {
    prefetch.advance(1);
#pragma GCC unroll 4
    for (int q = 0; q < kQueries; ++q) {
      float* s = scores + q * stride;
      Floats x = select(first, exp2_roughly(fmsub(load(s + i), factor, top[q])), zeros());
      Floats y = select(second, exp2_roughly(fmsub(load(s + i + 16), factor, top[q])), zeros());
      total[q] = total[q] + (x + y);
      store_bf16(reinterpret_cast<bf16*>(s) + i, x, y);
    }
  };
  for (int i = 0; i < full; i += 32) weigh(i, all, all);
  if (full < count) weigh(full, low, high);
  for (int q = 0; padding > 0 && q < kQueries; ++q)
    std::memset(reinterpret_cast<bf16*>(scores + q * stride) + padded - padding, 0, padding * sizeof(bf16));
  store_four(sum, sum_of_four(total), kQueries);
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
