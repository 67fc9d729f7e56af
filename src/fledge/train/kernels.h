// What the training kernels share: bf16 numbers and a fast exp.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace fledge {

using bf16 = uint16_t;

inline float load(bf16 value) {
  uint32_t bits = static_cast<uint32_t>(value) << 16;
  float result;
  std::memcpy(&result, &bits, 4);
  return result;
}

inline bf16 round_bf16(float value) {  // to nearest, ties to even
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return static_cast<bf16>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// exp for x <= 88; below -87 the smallest normal number, never a slow denormal one.
inline float fast_exp(float x) {
  x = std::max(x, -87.0f);
  float n = std::nearbyint(x * 1.44269504f);
  float r = x - n * 0.693147181f;
  float p = 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  uint32_t bits = static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23;
  float scale;
  std::memcpy(&scale, &bits, 4);
  return p * scale;
}

}  // namespace fledge
