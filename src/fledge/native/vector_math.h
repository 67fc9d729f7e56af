// Small helpers on vectors. Every function treats one row on its own, in one fixed order, so that a row's result never
// depends on how many rows are computed with it.
#pragma once
#include "vectors.h"

namespace fledge {

constexpr int kPanel = 32;  // outputs per panel of packed weights

// exp with a degree-6 polynomial on [-ln2/2, ln2/2]; relative error below 2e-7.
inline Floats exponential(Floats x) {
  x = maximum(x, broadcast(-87.0f));
  x = minimum(x, broadcast(88.0f));
  Floats n = nearest(x * broadcast(1.44269504f));
  Floats r = fnmadd(n, broadcast(0.693145752f), x);
  r = fnmadd(n, broadcast(1.42860677e-6f), r);
  Floats p = broadcast(1.0f / 720);
  p = fmadd(p, r, broadcast(1.0f / 120));
  p = fmadd(p, r, broadcast(1.0f / 24));
  p = fmadd(p, r, broadcast(1.0f / 6));
  p = fmadd(p, r, broadcast(0.5f));
  p = fmadd(p, r, broadcast(1.0f));
  p = fmadd(p, r, broadcast(1.0f));
  return scale_by_power(p, n);
}
// 2^x with a degree-3 polynomial on [0, 1): relative error below 8e-5, a twentieth of what rounding to bf16 does to it.
inline Floats exp2_roughly(Floats x) {
  Floats f = fraction(x);
  Floats p = broadcast(0.0780245231f);
  p = fmadd(p, f, broadcast(0.226067168f));
  p = fmadd(p, f, broadcast(0.695833529f));
  p = fmadd(p, f, broadcast(0.999925220f));
  return scale_by_power(p, x);
}

// 1 / (1 + e^-x): 2^(-x log2 e) with a degree-5 polynomial on [0, 1), relative error below 1e-7.
inline Floats sigmoid(Floats x) {
  Floats t = minimum(x * broadcast(-1.44269504f), broadcast(120.0f));
  Floats f = fraction(t);
  Floats p = broadcast(0.00187757553f);
  p = fmadd(p, f, broadcast(0.00898934249f));
  p = fmadd(p, f, broadcast(0.0558263175f));
  p = fmadd(p, f, broadcast(0.240153611f));
  p = fmadd(p, f, broadcast(0.693153082f));
  p = fmadd(p, f, broadcast(0.99999994f));
  return reciprocal(scale_by_power(p, t) + broadcast(1.0f));
}
inline Floats silu(Floats x) { return x * sigmoid(x); }

// The "tanh" form of GELU, x / 2 * (1 + tanh(u)) with u = sqrt(2 / pi) * (x + 0.044715 x^3), which is x * sigmoid(2u).
inline Floats gelu(Floats x) {
  Floats slope = fmadd(x * x, broadcast(0.0713548163f), broadcast(1.59576912f));
  return x * sigmoid(x * slope);
}

// Calls put(i, x / rms(x) * weight) for 16 numbers at a time; width is a multiple of 16.
template <class Put>
inline void rms_normed(const float* x, const float* weight, int width, float eps, Put put) {
  Floats sum = zeros();
  for (int i = 0; i < width; i += 16) {
    Floats v = load(x + i);
    sum = fmadd(v, v, sum);
  }
  Floats scale = broadcast(1.0f / std::sqrt(sum_of(sum) / width + eps));
  for (int i = 0; i < width; i += 16) put(i, load(x + i) * scale * load(weight + i));
}
inline void rms_norm(const float* x, const float* weight, bf16* out, int width, float eps) {
  rms_normed(x, weight, width, eps, [&](int i, Floats v) { store_bf16(out + i, v); });
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
