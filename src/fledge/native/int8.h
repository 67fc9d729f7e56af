// Matrix products over 8-bit weights, for the draft head: half the bytes of bf16 to read.
//
// A weight row has one scale, w = scale * (u - 128); the activations of a row have one scale per 32 inputs. The products
// of 32 inputs are summed exactly in int32 (VNNI: every processor with AVX-512 bf16 has it), and the sums of 32 are added
// in float, in one order whatever the number of rows. VNNI multiplies unsigned by signed bytes, so that the weights are
// kept 128 higher and every sum starts at -128 * (sum of the activations).
//
// A panel is 32 outputs, as in gemm.h, and a stream of K/4 steps:
//
//     panel p:  | k 0..3: outputs 0-15 | k 0..3: outputs 16-31 | k 4..7: outputs 0-15 | ...      64 bytes each
#pragma once
#include "prefetch.h"
#include "vector_math.h"

namespace fledge {

constexpr int kGroup = 32;  // inputs that share an activation scale

// Rows of activations in 8 bits.
struct Int8Rows {
  Buffer<int8_t> values;  // [rows, inputs]
  Buffer<float> scale;    // [rows, inputs / 32]
  Buffer<int32_t> base;   // [rows, inputs / 32]: -128 * the sum of the group's values
  void ensure(int rows, int inputs) {
    size_t count = static_cast<size_t>(rows) * inputs;
    values.ensure(count);
    scale.ensure(count / kGroup);
    base.ensure(count / kGroup);
  }
};

inline void quantise_row(const bf16* x, int inputs, int8_t* values, float* scale, int32_t* base) {
  for (int g = 0; g < inputs / kGroup; ++g, x += kGroup, values += kGroup) {
    __m512 a = load_bf16(x), b = load_bf16(x + 16);
    float high = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(a), _mm512_abs_ps(b)));
    __m512 factor = _mm512_set1_ps(high > 0 ? 127.0f / high : 0.0f);
    __m512i i = _mm512_cvtps_epi32(_mm512_mul_ps(a, factor)), j = _mm512_cvtps_epi32(_mm512_mul_ps(b, factor));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(values), _mm512_cvtsepi32_epi8(i));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(values + 16), _mm512_cvtsepi32_epi8(j));
    base[g] = -128 * _mm512_reduce_add_epi32(_mm512_add_epi32(i, j));
    scale[g] = high / 127.0f;
  }
}

// One weight row's scale, and its values 128 higher.
inline float quantise_weights(const bf16* w, int inputs, uint8_t* out) {
  float high = 0;
  for (int k = 0; k < inputs; ++k) high = std::fmax(high, std::fabs(to_float(w[k])));
  float factor = high > 0 ? 127.0f / high : 0.0f;
  for (int k = 0; k < inputs; ++k) out[k] = static_cast<uint8_t>(128 + std::lrint(to_float(w[k]) * factor));
  return high / 127.0f;
}

// kRows rows by a panel's 32 outputs.
template <int kRows>
inline void int8_block(const int8_t* a, const float* scale, const int32_t* base, int inputs, const uint8_t* w,
                       const float* output_scale, float* c, Ahead& ahead) {
  int groups = inputs / kGroup;
  __m512 sum[kRows][2];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) sum[r][0] = sum[r][1] = _mm512_setzero_ps();
  for (int g = 0; g < groups; ++g, a += kGroup) {
    __m512i part[kRows][2];
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r)
      part[r][0] = part[r][1] = _mm512_set1_epi32(base[static_cast<size_t>(r) * groups + g]);
#pragma GCC unroll 8
    for (int quad = 0; quad < kGroup / 4; ++quad, w += 128) {
      ahead.ask(2);
      __m512i left = _mm512_loadu_si512(w), right = _mm512_loadu_si512(w + 64);
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        int32_t four;
        std::memcpy(&four, a + static_cast<size_t>(r) * inputs + quad * 4, 4);
        __m512i v = _mm512_set1_epi32(four);
        part[r][0] = _mm512_dpbusd_epi32(part[r][0], left, v);
        part[r][1] = _mm512_dpbusd_epi32(part[r][1], right, v);
      }
    }
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      __m512 s = _mm512_set1_ps(scale[static_cast<size_t>(r) * groups + g]);
      sum[r][0] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(part[r][0]), s, sum[r][0]);
      sum[r][1] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(part[r][1]), s, sum[r][1]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
    _mm512_storeu_ps(c + r * 32, _mm512_mul_ps(sum[r][0], _mm512_loadu_ps(output_scale)));
    _mm512_storeu_ps(c + r * 32 + 16, _mm512_mul_ps(sum[r][1], _mm512_loadu_ps(output_scale + 16)));
  }
}

// c [rows, 32] = rows `first`, first + 1, ... of `x` times one panel.
inline void multiply_panel(const Int8Rows& x, int first, int rows, const uint8_t* w, const float* output_scale,
                           int inputs, float* c, Ahead ahead) {
  constexpr int kMost = 6;  // rows whose sums fit the 32 registers beside the weights
  int groups = (rows + kMost - 1) / kMost;
  for (int at = 0, left = groups; at < rows; --left) {
    int here = (rows - at + left - 1) / left;
    const int8_t* a = x.values.data + static_cast<size_t>(first + at) * inputs;
    const float* scale = x.scale.data + static_cast<size_t>(first + at) * (inputs / kGroup);
    const int32_t* base = x.base.data + static_cast<size_t>(first + at) * (inputs / kGroup);
    switch (here) {
#define FLEDGE_ROWS(n) \
  case n: int8_block<n>(a, scale, base, inputs, w, output_scale, c + at * 32, ahead); break;
      FLEDGE_ROWS(1) FLEDGE_ROWS(2) FLEDGE_ROWS(3) FLEDGE_ROWS(4) FLEDGE_ROWS(5) FLEDGE_ROWS(6)
#undef FLEDGE_ROWS
    }
    at += here;
    ahead = {};  // the first rows have asked for everything
  }
}

}  // namespace fledge
