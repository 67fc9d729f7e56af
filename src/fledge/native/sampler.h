// Per-row reductions over logits: argmax, top-k with log probabilities, sampling with filters.
//
// A token is sampled by an exponential race, as in the Gumbel-max trick: token i finishes after unit_time[i] /
// weight[i], with unit times that are exponentially distributed, and the first one wins. It wins with probability
// weight[i] / sum of weights. The unit times are a hash of a coin (one number per row) and the token, so a draw can
// be repeated; draft/race.py is the reference. The code computes speeds, weight[i] / unit_time[i], of which the
// largest wins.
#pragma once
#include <algorithm>
#include <climits>
#include <functional>

#include "vector_math.h"

namespace fledge {

inline float row_max(const float* x, int n) {
  __m512 best = _mm512_set1_ps(-INFINITY);
  int i = 0;
  for (; i + 16 <= n; i += 16) best = _mm512_max_ps(best, _mm512_loadu_ps(x + i));
  float high = _mm512_reduce_max_ps(best);
  for (; i < n; ++i) high = x[i] > high ? x[i] : high;
  return high;
}

struct Best {
  float value = -INFINITY;
  int id = INT_MAX;
  void offer(float v, int i) {
    if (v > value || (v == value && i < id)) {
      value = v;
      id = i;
    }
  }
  // The largest of x[0..count), whose first id is `first`; the first among equals.
  void offer_row(const float* x, int first, int count) {
    float high = row_max(x, count);
    if (high < value) return;
    for (int i = 0; i < count; ++i)
      if (x[i] == high) return offer(high, first + i);
  }
  int token() const { return id == INT_MAX ? 0 : id; }  // if no value was a number, token 0
};

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
  float temperature;  // 0: the largest logit's token
  float top_p, min_p;
  int top_k;  // 0: off

  // From four numbers: temperature, top-k, top-p, min-p.
  static SampleOptions of(const float* filters) {
    return {filters[0], filters[2], filters[3], static_cast<int>(filters[1])};
  }
  bool filters() const { return temperature > 0 && (top_k > 0 || top_p < 1 || min_p > 0); }
};

// The ids first, first + 1, ..., first + 15.
inline __m512i tokens_from(int first) {
  __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return _mm512_add_epi32(_mm512_set1_epi32(first), lane);
}

// -log of numbers in (0, 1); exact to a few units in the last place near 1, too (the polynomial of the Cephes library).
inline __m512 minus_log512(__m512 x) {
  __m512 m = _mm512_getmant_ps(x, _MM_MANT_NORM_1_2, _MM_MANT_SIGN_zero), e = _mm512_getexp_ps(x);
  __mmask16 large = _mm512_cmp_ps_mask(m, _mm512_set1_ps(1.41421356f), _CMP_GT_OQ);
  m = _mm512_mask_mul_ps(m, large, m, _mm512_set1_ps(0.5f));
  e = _mm512_mask_add_ps(e, large, e, _mm512_set1_ps(1.0f));
  __m512 r = _mm512_sub_ps(m, _mm512_set1_ps(1.0f)), square = _mm512_mul_ps(r, r);
  constexpr float kTerms[] = {-1.1514610310e-1f, 1.1676998740e-1f, -1.2420140846e-1f, 1.4249322787e-1f,
                              -1.6668057665e-1f, 2.0000714765e-1f, -2.4999993993e-1f, 3.3333331174e-1f};
  __m512 y = _mm512_set1_ps(7.0376836292e-2f);
  for (float term : kTerms) y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(term));
  y = _mm512_mul_ps(_mm512_mul_ps(y, r), square);
  y = _mm512_fmadd_ps(e, _mm512_set1_ps(-2.12194440e-4f), y);
  y = _mm512_add_ps(r, _mm512_fnmadd_ps(square, _mm512_set1_ps(0.5f), y));
  return _mm512_sub_ps(_mm512_setzero_ps(), _mm512_fmadd_ps(e, _mm512_set1_ps(0.693359375f), y));
}

// Uniform numbers in (0, 1) for 16 tokens; their negative logarithms are the unit times (`unit_times` in
// draft/race.py).
inline __m512 unit_numbers(__m512i tokens, int64_t coin) {
  auto times = [](__m512i z, uint32_t factor) {
    return _mm512_mullo_epi32(z, _mm512_set1_epi32(static_cast<int>(factor)));
  };
  auto mixed = [&](__m512i z) {
    z = times(_mm512_xor_si512(z, _mm512_srli_epi32(z, 16)), 0x85EBCA6Bu);
    z = times(_mm512_xor_si512(z, _mm512_srli_epi32(z, 13)), 0xC2B2AE35u);
    return _mm512_xor_si512(z, _mm512_srli_epi32(z, 16));
  };
  __m512i z = times(tokens, 0x9E3779B1u);
  z = mixed(_mm512_add_epi32(z, _mm512_set1_epi32(static_cast<int>(coin))));
  z = mixed(_mm512_xor_si512(z, _mm512_set1_epi32(static_cast<int>(coin >> 32))));
  __m512 unit = _mm512_add_ps(_mm512_cvtepi32_ps(_mm512_srli_epi32(z, 9)), _mm512_set1_ps(0.5f));
  return _mm512_mul_ps(unit, _mm512_set1_ps(1.0f / 8388608));
}

inline __m512 unit_times(__m512i tokens, int64_t coin) { return minus_log512(unit_numbers(tokens, coin)); }

// exp((x - high) * factor), where factor is 1 / temperature. Below e^-80 it is exactly zero, and never drawn.
inline __m512 weights_of(__m512 x, __m512 high, __m512 factor) {
  __m512 d = _mm512_mul_ps(_mm512_sub_ps(x, high), factor);
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(d, _mm512_set1_ps(-80.0f), _CMP_GT_OQ), exp512(d));
}

// Writes the weights p[i] = exp((x[i] - max) / temperature), and 0 from n up to a multiple of 16. Returns the
// smallest weight that top-k, then top-p, then min-p keep. top-p keeps the smallest set of most probable tokens with
// mass >= top_p. `p` holds 2 n floats, n rounded up to 16; the second half is scratch.
inline float filtered_weights(const float* x, int n, const SampleOptions& o, float* p) {
  float high = row_max(x, n);
  __m512 shift = _mm512_set1_ps(high), factor = _mm512_set1_ps(1.0f / o.temperature);
  int padded = (n + 15) / 16 * 16;
  __m512 sum = _mm512_setzero_ps();
  for (int i = 0; i < padded; i += 16) {
    __mmask16 live = n - i >= 16 ? 0xffff : static_cast<__mmask16>((1u << (n - i)) - 1);
    __m512 e = _mm512_maskz_mov_ps(live, weights_of(_mm512_maskz_loadu_ps(live, x + i), shift, factor));
    _mm512_storeu_ps(p + i, e);
    sum = _mm512_add_ps(sum, e);
  }
  double total = _mm512_reduce_add_ps(sum);
  float cut = 0;  // tokens with p < cut are dropped
  bool limit_k = o.top_k > 0 && o.top_k < n, limit_p = o.top_p < 1.0f;
  if (limit_k || limit_p) {
    // Instead of sorting all: lower a threshold until what is above it holds enough tokens or mass, then sort that.
    float* kept = p + padded;
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
      // With both limits top-p is taken of the k tokens' mass, so all k have to be there.
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
  return cut;
}

// Drafting for a sampled request: the k tokens of the draft vocabulary that are fastest in the race with this coin,
// by the head's logits, and the log probabilities that they win the target's; see `foreseen` in draft/race.py. `work`
// as `p` in `filtered_weights`.
inline void foresee(const float* x, int n, const int64_t* target_ids, int k, const SampleOptions& o, int64_t coin,
                    int* ids, float* values, float* work) {
  constexpr float kBehind = 1e-6f;
  __m512 cut = _mm512_set1_ps(filtered_weights(x, n, o, work));
  double races = 0;
  auto live = [&](int i) { return n - i >= 16 ? __mmask16(0xffff) : static_cast<__mmask16>((1u << (n - i)) - 1); };
  for (int i = 0; i < n; i += 16) {
    __m512i low = _mm512_maskz_loadu_epi64(static_cast<__mmask8>(live(i)), target_ids + i);
    __m512i top = _mm512_maskz_loadu_epi64(static_cast<__mmask8>(live(i) >> 8), target_ids + i + 8);
    __m512i tokens = _mm512_castsi256_si512(_mm512_cvtepi64_epi32(low));
    tokens = _mm512_inserti64x4(tokens, _mm512_cvtepi64_epi32(top), 1);
    __m512 w = _mm512_loadu_ps(work + i);
    __mmask16 dropped = _mm512_cmp_ps_mask(w, cut, _CMP_LT_OQ);
    w = _mm512_mask_mul_ps(w, dropped, w, _mm512_set1_ps(kBehind));
    w = _mm512_maskz_div_ps(live(i), w, unit_times(tokens, coin));
    _mm512_storeu_ps(work + i, w);
    races += _mm512_reduce_add_ps(w);
  }
  top_k(work, n, k, ids, values);
  for (int j = 0; j < k; ++j) values[j] = std::log(std::fmax(values[j] / static_cast<float>(races), 1e-30f));
}

// One row's token at a temperature, by the race. `p` as in `filtered_weights`. A unit time -log(u) is longer than 1 - u, and that
// bound rules out most tokens before a logarithm is taken.
inline int sample_row(const float* x, int n, const SampleOptions& o, int64_t coin, float* p) {
  int padded = (n + 15) / 16 * 16;
  float cut = filtered_weights(x, n, o, p);
  constexpr float kShortest = 5.9e-8f;  // the shortest unit time: a weight below `best` times this can't win
  constexpr float kSlack = 0.9999f;     // a margin for rounding
  __m512 best = _mm512_setzero_ps(), bar = _mm512_set1_ps(cut), slack = _mm512_set1_ps(kSlack);
  __m512i winner = _mm512_setzero_si512(), tokens = tokens_from(0);
  for (int i = 0; i < padded; i += 16, tokens = _mm512_add_epi32(tokens, _mm512_set1_epi32(16))) {
    __m512 v = _mm512_loadu_ps(p + i);
    __mmask16 runs = _mm512_cmp_ps_mask(v, bar, _CMP_GE_OQ);
    runs = _mm512_mask_cmp_ps_mask(runs, v, _mm512_mul_ps(best, _mm512_set1_ps(kShortest)), _CMP_GT_OQ);
    if (!runs) continue;
    __m512 unit = unit_numbers(tokens, coin);
    __m512 least = _mm512_mul_ps(best, _mm512_fnmadd_ps(unit, slack, slack));  // a weight needs more to win
    runs = _mm512_mask_cmp_ps_mask(runs, v, least, _CMP_GT_OQ);
    if (!runs) continue;
    __m512 speed = _mm512_maskz_div_ps(runs, v, minus_log512(unit));
    __mmask16 ahead = _mm512_mask_cmp_ps_mask(runs, speed, best, _CMP_GT_OQ);
    best = _mm512_mask_mov_ps(best, ahead, speed);
    winner = _mm512_mask_mov_epi32(winner, ahead, tokens);
  }
  alignas(64) float speeds[16];
  alignas(64) int ids[16];
  _mm512_store_ps(speeds, best);
  _mm512_store_si512(ids, winner);
  Best found;
  for (int lane = 0; lane < 16; ++lane) found.offer(speeds[lane], ids[lane]);
  return found.id;
}

// One row's token; `p` as in `filtered_weights`.
inline int choose_token(const float* x, int n, const SampleOptions& o, int64_t coin, float* p) {
  if (o.temperature > 0) return sample_row(x, n, o, coin, p);
  Best best;
  best.offer_row(x, 0, n);
  return best.token();
}

// `sample_row` without filters, for one panel: the logits x [32] of outputs `first` and up, of `outputs` in all.
// `high` is the row's largest logit. The fastest of them is offered to `best`.
inline void race_panel(const float* x, int first, int outputs, float high, float temperature, int64_t coin,
                       Best& best) {
  alignas(64) float speed[16];
  __m512 shift = _mm512_set1_ps(high), factor = _mm512_set1_ps(1.0f / temperature);
  for (int i = 0; i < kPanel; i += 16) {
    __m512 weight = weights_of(_mm512_loadu_ps(x + i), shift, factor);
    _mm512_store_ps(speed, _mm512_div_ps(weight, unit_times(tokens_from(first + i), coin)));
    for (int n = 0; n < 16 && first + i + n < outputs; ++n)
      if (speed[n] > 0) best.offer(speed[n], first + i + n);
  }
}

}  // namespace fledge
