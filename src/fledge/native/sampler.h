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
  Floats best = broadcast(-INFINITY);
  int i = 0;
  for (; i + 16 <= n; i += 16) best = maximum(best, load(x + i));
  float high = max_of(best);
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
  Floats sum = zeros(), shift = broadcast(high);
  int i = 0;
  for (; i + 16 <= n; i += 16) sum = sum + exponential(load(x + i) - shift);
  float total = sum_of(sum);
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
      uint32_t above = bits_of(greater(load(x + i), broadcast(values[k - 1])));
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

// The ids of the k largest of x[0..n), in any order: faster than `top_k` where k is large. How many: fewer where x holds
// no numbers. The k-th largest of the maxima of 16 is a bound that k numbers or more reach, and few others.
inline int largest(const float* x, int n, int k, int* ids, std::vector<float>& maxima, std::vector<int>& reach) {
  auto before = [&](int a, int b) { return x[a] != x[b] ? x[a] > x[b] : a < b; };
  Floats least = broadcast(-INFINITY);  // also for what is no number, which no order could place
  int groups = n / 16;
  float bound = -INFINITY;
  reach.clear();
  if (groups >= k) {
    maxima.resize(groups);
    for (int g = 0; g < groups; ++g) maxima[g] = max_of(maximum(load(x + g * 16), least));
    std::nth_element(maxima.begin(), maxima.begin() + k - 1, maxima.end(), std::greater<float>());
    bound = maxima[k - 1];
  }
  for (int i = 0; i < groups * 16; i += 16)
    for (uint32_t found = bits_of(at_least(load(x + i), broadcast(bound))); found; found &= found - 1)
      reach.push_back(i + __builtin_ctz(found));
  for (int i = groups * 16; i < n; ++i)
    if (x[i] >= bound) reach.push_back(i);
  int count = std::min(k, static_cast<int>(reach.size()));
  std::nth_element(reach.begin(), reach.begin() + count, reach.end(), before);
  std::copy_n(reach.begin(), count, ids);
  return count;
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
inline Ints tokens_from(int first) { return broadcast(first) + lane_numbers(); }

// -log of numbers in (0, 1); exact to a few units in the last place near 1, too (the polynomial of the Cephes library).
inline Floats minus_log(Floats x) {
  Floats m = mantissa(x), e = exponent(x);
  Mask large = greater(m, broadcast(1.41421356f));
  m = select(large, m * broadcast(0.5f), m);
  e = select(large, e + broadcast(1.0f), e);
  Floats r = m - broadcast(1.0f), square = r * r;
  constexpr float kTerms[] = {-1.1514610310e-1f, 1.1676998740e-1f, -1.2420140846e-1f, 1.4249322787e-1f,
                              -1.6668057665e-1f, 2.0000714765e-1f, -2.4999993993e-1f, 3.3333331174e-1f};
  Floats y = broadcast(7.0376836292e-2f);
  for (float term : kTerms) y = fmadd(y, r, broadcast(term));
  y = y * r * square;
  y = fmadd(e, broadcast(-2.12194440e-4f), y);
  y = r + fnmadd(square, broadcast(0.5f), y);
  return zeros() - fmadd(e, broadcast(0.693359375f), y);
}

// Uniform numbers in (0, 1) for 16 tokens; their negative logarithms are the unit times (`unit_times` in
// draft/race.py).
inline Floats unit_numbers(Ints tokens, int64_t coin) {
  auto times = [](Ints z, uint32_t factor) { return multiply_wrapping(z, broadcast(static_cast<int>(factor))); };
  auto mixed = [&](Ints z) {
    z = times(z ^ shift_right(z, 16), 0x85EBCA6Bu);
    z = times(z ^ shift_right(z, 13), 0xC2B2AE35u);
    return z ^ shift_right(z, 16);
  };
  Ints z = times(tokens, 0x9E3779B1u);
  z = mixed(add_wrapping(z, broadcast(static_cast<int>(coin))));
  z = mixed(z ^ broadcast(static_cast<int>(coin >> 32)));
  Floats unit = to_floats(shift_right(z, 9)) + broadcast(0.5f);
  return unit * broadcast(1.0f / 8388608);
}

inline Floats unit_times(Ints tokens, int64_t coin) { return minus_log(unit_numbers(tokens, coin)); }

// exp((x - high) * factor), where factor is 1 / temperature. Below e^-80 it is exactly zero, and never drawn.
inline Floats weights_of(Floats x, Floats high, Floats factor) {
  Floats d = (x - high) * factor;
  return select(greater(d, broadcast(-80.0f)), exponential(d), zeros());
}

// Writes the weights p[i] = exp((x[i] - max) / temperature), and 0 from n up to a multiple of 16. Returns the
// smallest weight that top-k, then top-p, then min-p keep. top-p keeps the smallest set of most probable tokens with
// mass >= top_p. `p` holds 2 n floats, n rounded up to 16; the second half is scratch.
inline float filtered_weights(const float* x, int n, const SampleOptions& o, float* p) {
  float high = row_max(x, n);
  Floats shift = broadcast(high), factor = broadcast(1.0f / o.temperature);
  int padded = (n + 15) / 16 * 16;
  Floats sum = zeros();
  for (int i = 0; i < padded; i += 16) {
    Floats e = select(first_lanes(n - i), weights_of(load_first(x + i, n - i), shift, factor), zeros());
    store(p + i, e);
    sum = sum + e;
  }
  double total = sum_of(sum);
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
      Floats bar = broadcast(threshold);
      for (int i = 0; i < padded; i += 16) {
        Floats v = load(p + i);
        Mask above = greater(v, bar);
        if (!bits_of(above)) continue;
        store_selected(kept + count, above, v);
        count += __builtin_popcount(bits_of(above));
        mass += sum_of(select(above, v, zeros()));
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
  Floats cut = broadcast(filtered_weights(x, n, o, work));
  double races = 0;
  for (int i = 0; i < n; i += 16) {
    Ints tokens = load_first(target_ids + i, n - i);
    Floats w = load(work + i);
    w = select(greater(cut, w), w * broadcast(kBehind), w);
    w = select(first_lanes(n - i), w / unit_times(tokens, coin), zeros());
    store(work + i, w);
    races += sum_of(w);
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
  Floats best = zeros(), bar = broadcast(cut), slack = broadcast(kSlack);
  Ints winner = broadcast(0), tokens = tokens_from(0);
  for (int i = 0; i < padded; i += 16, tokens = tokens + broadcast(16)) {
    Floats v = load(p + i);
    Mask runs = at_least(v, bar) & greater(v, best * broadcast(kShortest));
    if (!bits_of(runs)) continue;
    Floats unit = unit_numbers(tokens, coin);
    runs = runs & greater(v, best * fnmadd(unit, slack, slack));  // a weight needs more to win
    if (!bits_of(runs)) continue;
    Floats speed = v / minus_log(unit);
    Mask ahead = runs & greater(speed, best);
    best = select(ahead, speed, best);
    winner = select(ahead, tokens, winner);
  }
  alignas(64) float speeds[16];
  alignas(64) int ids[16];
  store(speeds, best);
  store(ids, winner);
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
  Floats shift = broadcast(high), factor = broadcast(1.0f / temperature);
  for (int i = 0; i < kPanel; i += 16) {
    Floats weight = weights_of(load(x + i), shift, factor);
    store(speed, weight / unit_times(tokens_from(first + i), coin));
    for (int n = 0; n < 16 && first + i + n < outputs; ++n)
      if (speed[n] > 0) best.offer(speed[n], first + i + n);
  }
}

}  // namespace fledge
