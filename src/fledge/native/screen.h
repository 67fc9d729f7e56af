// The token that each row chooses, greedily or sampled at its temperature, without reading most of the lm_head.
//
// An 8-bit copy of the lm_head gives an estimate of every logit and a bound on its error. With x a row, w an output's
// weights, and x' and w' what they are rounded to,
//
//     |x w - x' w'|  =  |x (w - w') + (x - x') w'|  <=  |x| |w - w'| + |x - x'| |w'|          (Cauchy-Schwarz)
//
// A panel of 32 outputs none of which can be the largest, or win the race (sampler.h), is ruled out; so is one of which
// the row may choose nothing, where an answer has to have a form. The few panels
// that are left for a row, its candidates, are multiplied in bf16 by the kernel that computes logits elsewhere: so
// the token is the same as from all logits, bit for bit.
//
// A row is rounded twice: to 8 bits, and the remainder to 8 bits again. An estimate from the first alone rules out
// nearly all panels; the second, which makes it 500 times as exact, is multiplied only where that doesn't suffice.
// Step by step:
//
//     round          all rows, coarse and fine
//     screen_panel   each panel: the coarse estimates of all rows; a row it may matter to goes on to
//     refine         the exact estimates: bounds that every later panel has to beat go up; candidates are collected
//     choose         candidates that the final bounds don't rule out, in bf16
#pragma once
#include <atomic>

#include "gemm.h"
#include "sampler.h"

namespace fledge {

struct Screen {
  const Weight* weights;  // in 8 bits
  const float* bounds;    // [panels, 2, 32]: |w - w'|, then |w'|
  const float* bound(int p) const { return bounds + static_cast<size_t>(p) * 2 * kPanel; }
};

constexpr float kRoundUp = 1.001f;  // a norm that is summed in float is too small by less than this

// The state of one forward's screening. In logarithms a race is won by the largest score, which is
// logit[i] - temperature * log(unit_time[i]) for token i.
class Screening {
 public:
  // Before the forward. filters [rows, 4], which filter nothing: temperatures count, 0: greedy; and coins [rows]; null:
  // all are greedy. `allowed` [rows, panels]: a bit for each token of a panel that a row may choose; null: any.
  void ensure(int rows, const Weight& w, int threads, const float* filters, const int64_t* coins,
              const uint32_t* allowed) {
    int inputs = w.inputs;
    outputs_ = w.outputs;
    panels_ = w.panels();
    allowed_ = allowed;
    coarse_.ensure(rows, inputs);
    fine_.ensure(rows, inputs);
    rows_.ensure(rows);
    for (int r = 0; r < rows; ++r) {
      rows_.data[r].temperature = filters ? filters[r * 4] : 0;
      rows_.data[r].coin = coins ? coins[r] : 0;
      rows_.data[r].largest.value.store(-INFINITY);
      rows_.data[r].winner.value.store(-INFINITY);
    }
    found_.resize(threads);
    for (auto& found : found_) found.clear();
  }

  // Inside Team::run: chosen [rows] for x [rows, inputs]. Behind the last row there is room for the rest of a tile.
  void run(Team& t, int id, const bf16* x, int rows, const Screen& screen, const Weight& lm_head, int64_t* chosen) {
    const Weight& w = *screen.weights;
    t.for_each(id, rows, [&](int r) { round(x + static_cast<size_t>(r) * w.inputs, r, w.inputs); });
    ProductPrefetch product(t, id, w);
    int at_once = rows_at_once(rows, 32);
    t.for_each(id, w.panels(), [&](int p) {
      for (int r = 0; r < rows; r += at_once) {
        int here = std::min(rows - r, at_once);
        if (some_allowed(r, here, p)) screen_panel(screen, p, r, here, product.panel(p, r), found_[id]);
      }
    });
    int total = 0;
    for (auto& found : found_) total += static_cast<int>(found.size());
    t.for_each(id, total, [&](int n) {
      size_t at = n, list = 0;
      for (; at >= found_[list].size(); ++list) at -= found_[list].size();
      Candidate& one = found_[list][at];
      one.remains = rows_.data[one.row].may_choose(one.largest, one.winner);
      if (!one.remains) return;
      alignas(64) float c[32 * kPanel];
      multiply_panel(x + static_cast<size_t>(one.row) * w.inputs, w.inputs, 1, lm_head.bf16_panel(one.panel), w.inputs, c,
                     kPanel, {});
      uint32_t may = allowed(one.row, one.panel);
      for (int i = 0; i < kPanel; i += 16)
        store(one.logits + i, select(mask_of(may >> i), load(c + i), broadcast(-INFINITY)));
    });
    t.for_each(id, rows, [&](int r) { chosen[r] = choose(r); });
  }

 private:
  struct LowerBound {  // of a row's largest value; threads may lose each other's updates, as every one of them is valid
    std::atomic<float> value;
    float at() const { return value.load(std::memory_order_relaxed); }
    void raise(float to) {
      if (to > at()) value.store(to, std::memory_order_relaxed);
    }
  };
  struct Row {
    float norm, coarse, fine;  // |x|; |x - x'| by one rounding and by two
    float temperature;
    int64_t coin;
    LowerBound largest, winner;  // of its logits, of its scores
    bool may_choose(float logit, float score) const {
      float slack = 1e-3f * temperature + 1e-4f;  // scores and `race_panel`, both in float, differ by less
      return logit >= largest.at() || (temperature > 0 && score >= winner.at() - slack);
    }
  };
  struct Candidate {
    int row, panel;
    float largest, winner;  // upper bounds of its logits and of its scores
    bool remains;           // not ruled out by the final bounds
    float logits[kPanel];
  };

  // The tokens of panel p that row r may choose.
  uint32_t allowed(int r, int p) const {
    int outputs = outputs_ - p * kPanel;
    uint32_t there = outputs < kPanel ? (1u << outputs) - 1 : ~0u;
    return allowed_ ? there & allowed_[static_cast<size_t>(r) * panels_ + p] : there;
  }
  bool some_allowed(int first, int rows, int p) const {
    uint32_t found = 0;
    for (int r = first; r < first + rows && !found; ++r) found |= allowed(r, p);
    return found;
  }

  void round(const bf16* x, int r, int inputs) {
    auto rounded = [&](const Rows8& to, int i) {
      size_t at = static_cast<size_t>(r) * inputs + i;
      return to_floats(load_bytes(to.values.data + at)) * broadcast(to.scale.data[at / kBlock]);
    };
    auto norm = [&](auto&& from) {
      Floats sum = zeros();
      for (int i = 0; i < inputs; i += 16) sum = fmadd(from(i), from(i), sum);
      return kRoundUp * std::sqrt(sum_of(sum));
    };
    auto all = [&](int i) { return load_bf16(x + i); };
    auto rest = [&](int i) { return all(i) - rounded(coarse_, i); };
    round_row(all, inputs, coarse_, r);
    round_row(rest, inputs, fine_, r);
    // Both products are summed in float: a unit in the last place for every term, of |x| |w| at most.
    float length = norm(all), slack = length * static_cast<float>(2 * inputs + 64) / (1 << 23);
    Row& row = rows_.data[r];
    row.norm = length + slack;
    row.coarse = norm(rest) + slack;
    row.fine = norm([&](int i) { return rest(i) - rounded(fine_, i); }) + slack;
  }

  static Floats error_of(const float* bound, float norm, float rounding) {
    return fmadd(broadcast(norm), load(bound), broadcast(rounding) * load(bound + kPanel));
  }

  // Which of panel p's outputs may be chosen, by the coarse estimates `c`. A bit for each.
  static uint32_t may_matter(const Row& row, const float* c, const float* bound, int p) {
    constexpr float kLess = 0.998f;  // a margin for rounding
    uint32_t found = 0;
    for (int i = 0; i < kPanel; i += 16) {
      Floats most = load(c + i) + error_of(bound + i, row.norm, row.coarse);
      Mask here = at_least(most, broadcast(row.largest.at()));
      if (row.temperature > 0) {  // a unit time -log(u) is longer than 1 - u
        Floats lead = most - broadcast(row.winner.at());
        Floats weight = exponential(lead * broadcast(1.0f / row.temperature));
        Floats unit = unit_numbers(tokens_from(p * kPanel + i), row.coin), less = broadcast(kLess);
        here = here | at_least(weight, fnmadd(unit, less, less));
      }
      found |= bits_of(here) << i;
    }
    return found;
  }

  // Panel p for `rows` rows, at most the 32 bits of a mask. `open`: the rows for which it isn't ruled out yet.
  void screen_panel(const Screen& screen, int p, int first, int rows, Prefetch prefetch,
                    std::vector<Candidate>& found) {
    const Weight& w = *screen.weights;
    const float* bound = screen.bound(p);
    uint32_t open = 0;
    alignas(64) float c[32 * kPanel], rest[32 * kPanel];
    multiply_codes(coarse_, first, rows, w, p, c, prefetch);
    for (int r = 0; r < rows; ++r)
      if (may_matter(rows_.data[first + r], c + r * kPanel, bound, p) & allowed(first + r, p)) open |= 1u << r;
    if (!open) return;
    bool together = 2 * __builtin_popcount(open) > rows;
    if (together) multiply_codes(fine_, first, rows, w, p, rest, {});
    for (; open; open &= open - 1) {
      int r = __builtin_ctz(open);
      if (!together) multiply_codes(fine_, first + r, 1, w, p, rest + r * kPanel, {});
      refine(first + r, p, c + r * kPanel, rest + r * kPanel, bound, found);
    }
  }

  // Row r's exact estimates of panel p are `c` + `rest`. The panel may become a candidate, and the lower bounds rise.
  void refine(int r, int p, const float* c, const float* rest, const float* bound,
              std::vector<Candidate>& found) {
    Row& row = rows_.data[r];
    uint32_t may = allowed(r, p);
    Candidate one{r, p, -INFINITY, -INFINITY, false, {}};
    float largest = -INFINITY, winner = -INFINITY;
    for (int i = 0; i < kPanel; i += 16) {
      Floats about = load(c + i) + load(rest + i), error = error_of(bound + i, row.norm, row.fine);
      Mask here = mask_of(may >> i);
      auto highest = [&](Floats v) { return max_of(select(here, v, broadcast(-INFINITY))); };
      one.largest = std::fmax(one.largest, highest(about + error));
      largest = std::fmax(largest, highest(about - error));
      if (row.temperature > 0) {
        Floats lead = minus_log(unit_times(tokens_from(p * kPanel + i), row.coin));
        Floats score = fmadd(broadcast(row.temperature), lead, about);
        one.winner = std::fmax(one.winner, highest(score + error));
        winner = std::fmax(winner, highest(score - error));
      }
    }
    if (row.may_choose(one.largest, one.winner)) found.push_back(one);
    row.largest.raise(largest);
    row.winner.raise(winner);
  }

  // Row r's token, the one that `sample_row`, or argmax, would take from all logits.
  int choose(int r) const {
    const Row& row = rows_.data[r];
    Best best;
    auto each = [&](auto&& visit) {
      for (auto& found : found_)
        for (auto& one : found)
          if (one.row == r && one.remains) visit(one, one.panel * kPanel);
    };
    each([&](const Candidate& one, int first) {
      best.offer_row(one.logits, first, std::min(outputs_ - first, kPanel));
    });
    if (row.temperature > 0) {
      float high = best.value;
      best = {};
      each([&](const Candidate& one, int first) {
        race_panel(one.logits, first, outputs_, high, row.temperature, row.coin, best);
      });
    }
    return best.token();
  }

  int outputs_ = 0, panels_ = 0;
  const uint32_t* allowed_ = nullptr;
  Rows8 coarse_, fine_;
  Buffer<Row> rows_;
  std::vector<std::vector<Candidate>> found_;  // by thread
};

}  // namespace fledge
