// Per-row reductions over logits: argmax, top-k log probabilities, sampling.
#pragma once
#include "vector_math.h"

namespace fledge {

struct Best {
  float value = -INFINITY;
  int id = INT_MAX;
  void offer(float v, int i) {
    if (v > value || (v == value && i < id)) {
      value = v;
      id = i;
    }
  }
};

inline float row_max(const float* x, int n) {
  __m512 best = _mm512_set1_ps(-INFINITY);
  int i = 0;
  for (; i + 16 <= n; i += 16) best = _mm512_max_ps(best, _mm512_loadu_ps(x + i));
  float high = _mm512_reduce_max_ps(best);
  for (; i < n; ++i) high = x[i] > high ? x[i] : high;
  return high;
}

inline float log_sum_exp(const float* x, int n, float high) {
  __m512 sum = _mm512_setzero_ps(), shift = _mm512_set1_ps(high);
  int i = 0;
  for (; i + 16 <= n; i += 16) sum = _mm512_add_ps(sum, exp512(_mm512_sub_ps(_mm512_loadu_ps(x + i), shift)));
  float total = _mm512_reduce_add_ps(sum);
  for (; i < n; ++i) total += std::exp(x[i] - high);
  return high + std::log(total);
}

// The k largest of x[0..n), descending, lowest id first among equals.
inline void top_k(const float* x, int n, int k, int* ids, float* values) {
  int held = 0;
  auto insert = [&](float v, int id) {
    if (held == k && !(v > values[k - 1])) return;
    int at = held < k ? held++ : k - 1;
    while (at > 0 && values[at - 1] < v) {
      values[at] = values[at - 1];
      ids[at] = ids[at - 1];
      --at;
    }
    values[at] = v;
    ids[at] = id;
  };
  int i = 0;
  for (; i + 16 <= n; i += 16) {
    if (held == k) {
      __mmask16 above = _mm512_cmp_ps_mask(_mm512_loadu_ps(x + i), _mm512_set1_ps(values[k - 1]), _CMP_GT_OQ);
      for (; above; above &= above - 1) {
        int j = i + __builtin_ctz(above);
        insert(x[j], j);
      }
    } else {
      for (int j = i; j < i + 16; ++j) insert(x[j], j);
    }
  }
  for (; i < n; ++i) insert(x[i], i);
}

struct SampleOptions {
  float temperature, top_p, min_p;
  int top_k;  // 0: off
};

// Inverse-CDF sampling of one row from softmax(x / temperature) cut by top-k, then top-p, then min-p.
// `work` holds 2 n floats. The kept set of top-p is the smallest set of most probable tokens with mass >= top_p.
inline int sample_row(const float* x, int n, const SampleOptions& o, float uniform, float* work) {
  float high = row_max(x, n);
  __m512 shift = _mm512_set1_ps(high), factor = _mm512_set1_ps(1.0f / o.temperature);
  int padded = (n + 15) / 16 * 16;
  float* p = work;
  __m512 sum = _mm512_setzero_ps();
  for (int i = 0; i < padded; i += 16) {
    __mmask16 live = n - i >= 16 ? 0xffff : static_cast<__mmask16>((1u << (n - i)) - 1);
    __m512 d = _mm512_mul_ps(_mm512_sub_ps(_mm512_maskz_loadu_ps(live, x + i), shift), factor);
    // Below e^-80 a probability is exactly zero, so that it can never be drawn.
    live = _mm512_mask_cmp_ps_mask(live, d, _mm512_set1_ps(-80.0f), _CMP_GT_OQ);
    __m512 e = _mm512_maskz_mov_ps(live, exp512(d));
    _mm512_storeu_ps(p + i, e);
    sum = _mm512_add_ps(sum, e);
  }
  double total = _mm512_reduce_add_ps(sum);
  float cut = 0;  // tokens with p < cut are dropped
  bool limit_k = o.top_k > 0 && o.top_k < n, limit_p = o.top_p < 1.0f;
  if (limit_k || limit_p) {
    // Candidates above a falling threshold until they hold enough tokens or mass, then sorted.
    float* kept = work + padded;
    float threshold = 1e-2f;
    int count = 0;
    while (true) {
      count = 0;
      double mass = 0;
      __m512 bar = _mm512_set1_ps(threshold);
      for (int i = 0; i < padded; i += 16) {
        __m512 v = _mm512_loadu_ps(p + i);
        __mmask16 above = _mm512_cmp_ps_mask(v, bar, _CMP_GT_OQ);
        if (!above) continue;
        _mm512_mask_compressstoreu_ps(kept + count, above, v);
        count += __builtin_popcount(above);
        mass += _mm512_mask_reduce_add_ps(above, v);
      }
      // With both limits the nucleus is one of the k tokens' mass, so that all k have to be there.
      bool enough = limit_k ? count >= o.top_k : mass >= o.top_p * total;
      if (enough || threshold == 0.0f) break;
      threshold = threshold < 1e-30f ? 0.0f : threshold * 0.05f;
    }
    std::sort(kept, kept + count, std::greater<float>());
    int last = count;
    if (limit_k && o.top_k < last) last = o.top_k;
    if (limit_p) {
      double kept_total = 0;  // top-p is taken of the distribution top-k left
      if (limit_k) for (int i = 0; i < last; ++i) kept_total += kept[i];
      else kept_total = total;
      double running = 0;
      for (int i = 0; i < last; ++i) {
        running += kept[i];
        if (running >= o.top_p * kept_total) {
          last = i + 1;
          break;
        }
      }
    }
    cut = last > 0 ? kept[last - 1] : 0;
  }
  if (o.min_p > 0 && o.min_p > cut) cut = o.min_p;  // the largest p is exactly 1 before normalisation
  double mass = 0;
  for (int i = 0; i < padded; i += 16) {
    __m512 v = _mm512_loadu_ps(p + i);
    mass += _mm512_mask_reduce_add_ps(_mm512_cmp_ps_mask(v, _mm512_set1_ps(cut), _CMP_GE_OQ), v);
  }
  double goal = uniform * mass, running = 0;
  int last_kept = 0;
  for (int i = 0; i < padded; i += 16) {
    __m512 v = _mm512_loadu_ps(p + i);
    __mmask16 keep = _mm512_cmp_ps_mask(v, _mm512_set1_ps(cut), _CMP_GE_OQ);
    double block = _mm512_mask_reduce_add_ps(keep, v);
    if (running + block <= goal) {
      running += block;
      continue;
    }
    for (int j = i; j < i + 16 && j < n; ++j) {
      if (!(p[j] >= cut) || p[j] <= 0) continue;
      running += p[j];
      last_kept = j;
      if (running > goal) return j;
    }
  }
  return last_kept;
}

}  // namespace fledge
