// Small AVX-512 helpers. Every function treats one row on its own, in one fixed order, so that a row's result never
// depends on how many rows are computed with it.
#pragma once
#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace fledge {

using bf16 = uint16_t;

constexpr int kPanel = 32;  // outputs per panel of packed weights

inline __m512 load_bf16(const bf16* p) {
  __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}
inline void store_bf16(bf16* p, __m512 v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), (__m256i)_mm512_cvtneps_pbh(v));
}
inline float to_float(bf16 v) {
  uint32_t bits = static_cast<uint32_t>(v) << 16;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

// exp with a degree-6 polynomial on [-ln2/2, ln2/2]; relative error below 2e-7.
inline __m512 exp512(__m512 x) {
  x = _mm512_max_ps(x, _mm512_set1_ps(-87.0f));
  x = _mm512_min_ps(x, _mm512_set1_ps(88.0f));
  __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 0);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693145752f), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(1.42860677e-6f), r);
  __m512 p = _mm512_set1_ps(1.0f / 720);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 120));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 24));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 6));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, n);
}
// 2^x with a degree-3 polynomial on [0, 1): relative error below 8e-5, a twentieth of what rounding to bf16 does to it.
inline __m512 exp2_roughly(__m512 x) {
  __m512 f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  __m512 p = _mm512_set1_ps(0.0780245231f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.226067168f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.695833529f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.999925220f));
  return _mm512_scalef_ps(p, x);
}

// 1 / (1 + e^-x): 2^(-x log2 e) with a degree-5 polynomial on [0, 1), relative error below 1e-7, and the reciprocal
// by one step of Newton's method. A third of the time that a division and exp512 take.
inline __m512 sigmoid512(__m512 x) {
  __m512 t = _mm512_min_ps(_mm512_mul_ps(x, _mm512_set1_ps(-1.44269504f)), _mm512_set1_ps(120.0f));
  __m512 f = _mm512_reduce_ps(t, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  __m512 p = _mm512_set1_ps(0.00187757553f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.00898934249f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.0558263175f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.240153611f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.693153082f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.99999994f));
  __m512 below = _mm512_add_ps(_mm512_scalef_ps(p, t), _mm512_set1_ps(1.0f));
  __m512 inverse = _mm512_rcp14_ps(below);
  return _mm512_mul_ps(inverse, _mm512_fnmadd_ps(below, inverse, _mm512_set1_ps(2.0f)));
}
inline __m512 silu512(__m512 x) { return _mm512_mul_ps(x, sigmoid512(x)); }

// The "tanh" form of GELU, x / 2 * (1 + tanh(u)) with u = sqrt(2 / pi) * (x + 0.044715 x^3), which is x * sigmoid(2u).
inline __m512 gelu512(__m512 x) {
  __m512 slope = _mm512_fmadd_ps(_mm512_mul_ps(x, x), _mm512_set1_ps(0.0713548163f), _mm512_set1_ps(1.59576912f));
  return _mm512_mul_ps(x, sigmoid512(_mm512_mul_ps(x, slope)));
}

// Calls put(i, x / rms(x) * weight) for 16 numbers at a time; width is a multiple of 16.
template <class Put>
inline void rms_normed(const float* x, const float* weight, int width, float eps, Put put) {
  __m512 sum = _mm512_setzero_ps();
  for (int i = 0; i < width; i += 16) {
    __m512 v = _mm512_loadu_ps(x + i);
    sum = _mm512_fmadd_ps(v, v, sum);
  }
  __m512 scale = _mm512_set1_ps(1.0f / std::sqrt(_mm512_reduce_add_ps(sum) / width + eps));
  for (int i = 0; i < width; i += 16)
    put(i, _mm512_mul_ps(_mm512_mul_ps(_mm512_loadu_ps(x + i), scale), _mm512_loadu_ps(weight + i)));
}
inline void rms_norm(const float* x, const float* weight, bf16* out, int width, float eps) {
  rms_normed(x, weight, width, eps, [&](int i, __m512 v) { store_bf16(out + i, v); });
}

// A growing 64-byte aligned buffer; contents are not kept when it grows.
template <class T>
struct Buffer {
  T* data = nullptr;
  size_t capacity = 0;
  T* ensure(size_t count) {
    if (count > capacity) {
      std::free(data);
      capacity = count + count / 4;
      size_t bytes = (capacity * sizeof(T) + 4095) / 4096 * 4096;
      data = static_cast<T*>(std::aligned_alloc(4096, bytes));
      if (data) std::memset(static_cast<void*>(data), 0, bytes);
      else capacity = 0;
    }
    return data;
  }
};

}  // namespace fledge
