// Vectors of 16 numbers, the only width that the kernels compute with, and what they do with them. Two files have the
// same functions:
//
//     vectors_avx512.h      a vector is one register of AVX-512
//     vectors_portable.h    the compiler's own vectors: two registers of AVX2, or four of NEON
//
// Floats and Ints are 16 numbers of 32 bits, with the operators + - * / and, on Ints, & | ^ << >>. A Mask says yes or
// no for each of the 16 lanes; & and | combine masks.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace fledge {

using bf16 = uint16_t;

inline float to_float(bf16 v) {
  uint32_t bits = static_cast<uint32_t>(v) << 16;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

}  // namespace fledge

#ifdef __AVX512BW__
#include "vectors_avx512.h"
#else
#include "vectors_portable.h"
#endif
