// The most probable token of each row, and most of the lm_head never read.
//
// An 8-bit copy says what every logit is about, and by how much that can be wrong: with x a row, w an output's weights,
// x' and w' what they are rounded to,
//
//     |x w - x' w'|  =  |x (w - w') + (x - x') w'|  <=  |x| |w - w'| + |x - x'| |w'|          (Cauchy-Schwarz)
//
// A panel whose logits are below another one's for certain is done with. What is left, a few panels per row, is multiplied
// in bf16 by the kernel that computes logits elsewhere: the token found is theirs, bit for bit.
//
// Rows are rounded twice, to 8 bits and what that leaves out to 8 bits again. The first alone rules out nearly all
// panels; the second, 500 times as exact, is multiplied where it doesn't.
#pragma once
#include <atomic>

#include "gemm.h"
#include "sampler.h"

namespace fledge {

struct Screen {
  Packed weights;          // in 8 bits
  float* bounds = nullptr;  // [panels, 2, 32]: |w - w'|, then |w'|
  const float* bound(int p) const { return bounds + static_cast<size_t>(p) * 2 * kPanel; }
};

constexpr float kRoundUp = 1.00001f;  // more than a norm in float can be too small

inline Screen pack_screen(const bf16* weight, int outputs, int inputs) {
  Screen s;
  s.weights = pack_int8(weight, outputs, inputs, false);
  s.bounds = static_cast<float*>(std::calloc(static_cast<size_t>(s.weights.panels()) * 2 * kPanel, sizeof(float)));
  if (!s.weights.int8 || !s.bounds) return s;
  std::vector<uint8_t> values(inputs);
  for (int n = 0; n < outputs; ++n) {
    const bf16* w = weight + static_cast<size_t>(n) * inputs;
    float scale = quantise_weights(w, inputs, values.data()), off = 0, norm = 0;
    for (int k = 0; k < inputs; ++k) {
      float rounded = scale * static_cast<float>(values[k] - 128), rest = to_float(w[k]) - rounded;
      off += rest * rest;
      norm += rounded * rounded;
    }
    float* bound = s.bounds + static_cast<size_t>(n / kPanel) * 2 * kPanel + n % kPanel;
    bound[0] = kRoundUp * std::sqrt(off);
    bound[kPanel] = kRoundUp * std::sqrt(norm);
  }
  return s;
}

// What is remembered while rows are screened; forwards are serialised.
class Screening {
 public:
  void ensure(int rows, int inputs, int threads) {
    coarse_.ensure(rows, inputs);
    fine_.ensure(rows, inputs);
    rows_.ensure(rows);
    low_.ensure(rows);
    for (int r = 0; r < rows; ++r) low_.data[r].store(-INFINITY, std::memory_order_relaxed);
    candidates_.resize(threads);
    for (auto& found : candidates_) found.clear();
  }

  // Inside Team::run: offers the logits of x [rows, inputs] that may be a row's largest. After the last row there is room
  // for a tile's.
  void run(Team& t, int id, const bf16* x, int rows, const Screen& screen, const Packed& lm_head, std::vector<Best>& best) {
    const Packed& w = screen.weights;
    t.for_each(id, rows, [&](int r) { round(x + static_cast<size_t>(r) * w.inputs, r, w.inputs); });
    Asking asking(t, id, w);
    t.for_each(id, w.panels(), [&](int p) {
      for (int r = 0; r < rows; r += 32) look(screen, p, r, rows - r < 32 ? rows - r : 32, asking.panel(p, r), candidates_[id]);
    });
    int total = 0;
    for (auto& found : candidates_) total += static_cast<int>(found.size());
    t.for_each(id, total, [&](int n) {
      size_t at = n, list = 0;
      for (; at >= candidates_[list].size(); ++list) at -= candidates_[list].size();
      const Candidate& found = candidates_[list][at];
      if (found.most < bar(found.row)) return;
      alignas(64) float c[32 * kPanel];
      multiply_panel(x + static_cast<size_t>(found.row) * w.inputs, w.inputs, 1, lm_head.panel(found.panel), w.inputs, c,
                     kPanel, {});
      best[found.row].offer_panel(c, found.panel * kPanel, w.outputs);
    });
  }

 private:
  struct Row {
    float norm, coarse, fine;  // |x|; |x - x'| by one rounding and by two
  };
  struct Candidate {
    int row, panel;
    float most;  // that one of its logits can be
  };

  void round(const bf16* x, int r, int inputs) {
    int groups = groups_of(inputs);
    size_t value = static_cast<size_t>(r) * inputs, group = static_cast<size_t>(r) * groups;
    auto rounded = [&](const Int8Rows& to, int i) {
      __m512i v = _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(to.values.data + value + i)));
      return _mm512_mul_ps(_mm512_cvtepi32_ps(v), _mm512_set1_ps(to.scale.data[group + i / kGroup]));
    };
    auto round_to = [&](const Int8Rows& to, auto&& from) {
      quantise_row(from, inputs, to.values.data + value, to.scale.data + group, to.base.data + group);
    };
    auto norm = [&](auto&& from) {
      __m512 sum = _mm512_setzero_ps();
      for (int i = 0; i < inputs; i += 16) sum = _mm512_fmadd_ps(from(i), from(i), sum);
      return kRoundUp * std::sqrt(_mm512_reduce_add_ps(sum));
    };
    auto all = [&](int i) { return load_bf16(x + i); };
    auto rest = [&](int i) { return _mm512_sub_ps(all(i), rounded(coarse_, i)); };
    round_to(coarse_, all);
    round_to(fine_, rest);
    // What sums in float can be wrong by, of both products: a unit in the last place for every term, of |x| |w| at most.
    float length = norm(all), slack = length * static_cast<float>(2 * inputs + 64) / (1 << 23);
    float fine = norm([&](int i) { return _mm512_sub_ps(rest(i), rounded(fine_, i)); });
    rows_.data[r] = {length + slack, norm(rest) + slack, fine + slack};
  }

  static void multiply(const Int8Rows& x, int first, int rows, const Packed& w, int p, float* c, Ahead ahead) {
    const float* scale = w.scale + p * kPanel;
    if (!multiply_int8_tiles(x, first, rows, w.int8_panel(p), scale, w.inputs, c, ahead))
      multiply_panel(x, first, rows, w.int8_panel(p), scale, w.inputs, c, ahead);
  }

  // Which logits [32] aren't below the bar for certain.
  static uint32_t above(const float* about, const float* bound, float norm, float rounding, float bar) {
    uint32_t found = 0;
    for (int i = 0; i < kPanel; i += 16) {
      __m512 most = _mm512_add_ps(_mm512_loadu_ps(about + i), error_of(bound + i, norm, rounding));
      found |= static_cast<uint32_t>(_mm512_cmp_ps_mask(most, _mm512_set1_ps(bar), _CMP_GE_OQ)) << i;
    }
    return found;
  }
  static __m512 error_of(const float* bound, float norm, float rounding) {
    return _mm512_fmadd_ps(_mm512_set1_ps(norm), _mm512_loadu_ps(bound),
                           _mm512_mul_ps(_mm512_set1_ps(rounding), _mm512_loadu_ps(bound + kPanel)));
  }

  // One panel for a block of at most 32 rows.
  void look(const Screen& screen, int p, int first, int rows, Ahead ahead, std::vector<Candidate>& found) {
    const Packed& w = screen.weights;
    const float* bound = screen.bound(p);
    int outputs = w.outputs - p * kPanel;
    uint32_t live = outputs < kPanel ? (1u << outputs) - 1 : ~0u, doubtful = 0;
    alignas(64) float c[32 * kPanel], rest[32 * kPanel];
    multiply(coarse_, first, rows, w, p, c, ahead);
    for (int r = 0; r < rows; ++r) {
      const Row& row = rows_.data[first + r];
      if (above(c + r * kPanel, bound, row.norm, row.coarse, bar(first + r)) & live) doubtful |= 1u << r;
    }
    if (!doubtful) return;
    bool most = 2 * __builtin_popcount(doubtful) > rows;
    if (most) multiply(fine_, first, rows, w, p, rest, {});
    for (; doubtful; doubtful &= doubtful - 1) {
      int r = __builtin_ctz(doubtful);
      if (!most) multiply(fine_, first + r, 1, w, p, rest + r * kPanel, {});
      decide(first + r, p, c + r * kPanel, rest + r * kPanel, bound, live, found);
    }
  }

  // Row r's logits of a panel are about `c` + `rest`: it stays a candidate, or not, and the bar may rise.
  void decide(int r, int p, float* c, const float* rest, const float* bound, uint32_t live, std::vector<Candidate>& found) {
    const Row& row = rows_.data[r];
    float most = -INFINITY, least = -INFINITY;
    for (int i = 0; i < kPanel; i += 16) {
      __m512 about = _mm512_add_ps(_mm512_loadu_ps(c + i), _mm512_loadu_ps(rest + i));
      __m512 error = error_of(bound + i, row.norm, row.fine);
      __mmask16 here = static_cast<__mmask16>(live >> i);
      _mm512_storeu_ps(c + i, about);
      most = std::fmax(most, _mm512_mask_reduce_max_ps(here, _mm512_add_ps(about, error)));
      least = std::fmax(least, _mm512_mask_reduce_max_ps(here, _mm512_sub_ps(about, error)));
    }
    if (above(c, bound, row.norm, row.fine, bar(r)) & live) found.push_back({r, p, most});
    // Another thread's higher bar may be lost: any is true.
    if (least > bar(r)) low_.data[r].store(least, std::memory_order_relaxed);
  }
  float bar(int r) const { return low_.data[r].load(std::memory_order_relaxed); }

  Int8Rows coarse_, fine_;
  Buffer<Row> rows_;
  Buffer<std::atomic<float>> low_;  // by row: some logit is at least that
  std::vector<std::vector<Candidate>> candidates_;  // by thread
};

}  // namespace fledge
