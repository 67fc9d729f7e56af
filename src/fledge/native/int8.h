// Matrix products with 8-bit weights (W8A8), for the draft head and for screening: half the bytes of bf16 to read.
//
// Weights are symmetric with one scale per output, w = scale * (u - 128); activations are quantised here, symmetric
// with one scale per 64 inputs. The products of 64 inputs are summed exactly in int32, by vectors (`dot_bytes`, one
// instruction with VNNI) or by AMX tiles (tiles_amx.h), and these sums are added up in float, in one order whatever
// the number of rows. The instructions multiply unsigned by signed bytes: so weights are stored 128 higher, and every
// int32 sum starts at -128 * (sum of the group's activations).
//
// A panel is 32 outputs, as in gemm.h, here a stream of K/4 quads of k:
//
//     panel p:  | k 0..3: outputs 0-15 | k 0..3: outputs 16-31 | k 4..7: outputs 0-15 | ...      64 bytes each
#pragma once
#include <algorithm>

#include "prefetch.h"
#include "vector_math.h"

namespace fledge {

constexpr int kGroup = 64;  // inputs that share an activation scale; the last group may be half of that
constexpr int kHalf = kGroup / 2;
inline int groups_of(int inputs) { return (inputs + kGroup - 1) / kGroup; }

// Rows of activations in 8 bits, with room for whole tiles of 16 rows.
struct Int8Rows {
  Buffer<int8_t> values;  // [rows, inputs]
  Buffer<float> scale;    // [rows, groups]
  Buffer<int32_t> base;   // [rows, groups]: -128 * the sum of the group's values
  void ensure(int rows, int inputs) {
    size_t padded = (static_cast<size_t>(rows) + 31) / 32 * 32;
    values.ensure(padded * inputs);
    scale.ensure(padded * groups_of(inputs));
    base.ensure(padded * groups_of(inputs));
  }
};

// Quantises one row. from(i) gives 16 inputs from i on.
template <class From>
inline void quantise_row(From&& from, int inputs, int8_t* values, float* scale, int32_t* base) {
  for (int g = 0; g < groups_of(inputs); ++g) {
    int first = g * kGroup, count = inputs - first < kGroup ? kHalf : kGroup;
    Floats top = zeros();
    for (int i = first; i < first + count; i += 16) top = maximum(top, absolute(from(i)));
    float high = max_of(top);
    Floats factor = broadcast(high > 0 ? 127.0f / high : 0.0f);
    Ints sum = broadcast(0);
    for (int i = first; i < first + count; i += 16) {
      Ints v = to_ints(from(i) * factor);
      store_bytes(values + i, v);
      sum = sum + v;
    }
    base[g] = -128 * sum_of(sum);
    scale[g] = high / 127.0f;
  }
}

// Quantises one output's weights: returns the scale, writes the values, 128 higher.
inline float quantise_weights(const bf16* w, int inputs, uint8_t* out) {
  float high = 0;
  for (int k = 0; k < inputs; ++k) high = std::max(high, std::fabs(to_float(w[k])));
  float factor = high > 0 ? 127.0f / high : 0.0f;
  for (int k = 0; k < inputs; ++k) out[k] = static_cast<uint8_t>(128 + std::lrint(to_float(w[k]) * factor));
  return high / 127.0f;
}

// c [kRows, 32] = kRows rows times one panel; sums stay in registers.
template <int kRows>
inline void int8_block(const int8_t* a, const float* scale, const int32_t* base, int inputs, const uint8_t* w,
                       const float* output_scale, float* c, Prefetch& prefetch, RowGroup group) {
  int groups = groups_of(inputs);
  Floats sum[kRows][2];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) sum[r][0] = sum[r][1] = zeros();
  for (int g = 0; g < groups; ++g) {
    Ints part[kRows][2];
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r)
      part[r][0] = part[r][1] = broadcast(base[static_cast<size_t>(r) * groups + g]);
    for (int k = g * kGroup; k < inputs && k < (g + 1) * kGroup; k += kHalf, a += kHalf) {
      Lines unit = group.prefetches(k / kHalf) ? prefetch.next_unit() : Lines{};
#pragma GCC unroll 8
      for (int quad = 0; quad < kHalf / 4; ++quad, w += 128) {
        prefetch_lines(unit, quad * 2, 2);
        Ints left = load_line(w), right = load_line(w + 64);
#pragma GCC unroll 6
        for (int r = 0; r < kRows; ++r) {
          int32_t four;
          std::memcpy(&four, a + static_cast<size_t>(r) * inputs + quad * 4, 4);
          Ints v = broadcast(four);
          part[r][0] = dot_bytes(part[r][0], left, v);
          part[r][1] = dot_bytes(part[r][1], right, v);
        }
      }
    }
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      Floats s = broadcast(scale[static_cast<size_t>(r) * groups + g]);
      sum[r][0] = fmadd(to_floats(part[r][0]), s, sum[r][0]);
      sum[r][1] = fmadd(to_floats(part[r][1]), s, sum[r][1]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
    store(c + r * kPanel, sum[r][0] * load(output_scale));
    store(c + r * kPanel + 16, sum[r][1] * load(output_scale + 16));
  }
}

// c [rows, 32] = rows `first`, first + 1, ... of `x` times one panel.
inline void multiply_panel(const Int8Rows& x, int first, int rows, const uint8_t* w, const float* output_scale,
                           int inputs, float* c, Prefetch prefetch) {
  constexpr int kMost = kRegisters / kVectorRegisters == 32 ? 6 : 2;  // rows whose sums fit the registers
  RowGroup group{0, (rows + kMost - 1) / kMost};
  for (int at = 0; at < rows; ++group.index) {
    int here = group.rows(rows - at);
    const int8_t* a = x.values.data + static_cast<size_t>(first + at) * inputs;
    const float* scale = x.scale.data + static_cast<size_t>(first + at) * groups_of(inputs);
    const int32_t* base = x.base.data + static_cast<size_t>(first + at) * groups_of(inputs);
    switch (here) {
#define FLEDGE_ROWS(n)                                                                                     \
  case n:                                                                                                  \
    if constexpr (n <= kMost)                                                                              \
      int8_block<n>(a, scale, base, inputs, w, output_scale, c + at * kPanel, prefetch, group);            \
    break;
      FLEDGE_ROWS(1) FLEDGE_ROWS(2) FLEDGE_ROWS(3) FLEDGE_ROWS(4) FLEDGE_ROWS(5) FLEDGE_ROWS(6)
#undef FLEDGE_ROWS
    }
    at += here;
  }
}

}  // namespace fledge
