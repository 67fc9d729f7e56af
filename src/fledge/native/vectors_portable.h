// Vectors of 16 numbers by the compiler's own vectors, for AVX2 (two registers of 8 numbers) and NEON (four of 4), or
// whatever else it targets. vectors_avx512.h has the same functions, which are described there.
#pragma once
#ifdef __AVX2__
#include <immintrin.h>
#else
#include <arm_neon.h>
#endif

#define FLEDGE_INLINE [[gnu::always_inline]] inline

namespace fledge {

#ifdef __AVX2__
constexpr int kRegisterBytes = 32, kRegisters = 16;
#else
constexpr int kRegisterBytes = 16, kRegisters = 32;
#endif
constexpr int kVectorRegisters = 64 / kRegisterBytes, kPart = 16 / kVectorRegisters;  // kPart: numbers in a register

template <class T>
struct Lanes {
  typedef T Part __attribute__((vector_size(kPart * sizeof(T))));
  typedef T Anywhere __attribute__((vector_size(kPart * sizeof(T)), aligned(1), may_alias));
  Part part[kVectorRegisters];
  // Calls of(i) for each register.
  template <class Of>
  FLEDGE_INLINE static Lanes each(Of&& of) {
    Lanes out;
#pragma GCC unroll 4
    for (int i = 0; i < kVectorRegisters; ++i) out.part[i] = of(i);
    return out;
  }
  FLEDGE_INLINE static Lanes from(const void* p) {
    return each([&](int i) { return static_cast<Part>(static_cast<const Anywhere*>(p)[i]); });
  }
  FLEDGE_INLINE void to(void* p) const {
#pragma GCC unroll 4
    for (int i = 0; i < kVectorRegisters; ++i) static_cast<Anywhere*>(p)[i] = part[i];
  }
};
using Floats = Lanes<float>;
using Ints = Lanes<int32_t>;
using Mask = Ints;  // 0 or -1

#define FLEDGE_OPERATOR(op, T)                                              \
  FLEDGE_INLINE T operator op(T a, T b) {                                   \
    return T::each([&](int i) { return a.part[i] op b.part[i]; });          \
  }
FLEDGE_OPERATOR(+, Floats) FLEDGE_OPERATOR(-, Floats) FLEDGE_OPERATOR(*, Floats) FLEDGE_OPERATOR(/, Floats)
FLEDGE_OPERATOR(+, Ints) FLEDGE_OPERATOR(-, Ints) FLEDGE_OPERATOR(*, Ints)
FLEDGE_OPERATOR(&, Ints) FLEDGE_OPERATOR(|, Ints) FLEDGE_OPERATOR(^, Ints)
#undef FLEDGE_OPERATOR
FLEDGE_INLINE Ints operator<<(Ints v, int bits) {
  return Ints::each([&](int i) { return v.part[i] << bits; });
}
FLEDGE_INLINE Ints operator>>(Ints v, int bits) {
  return Ints::each([&](int i) { return v.part[i] >> bits; });
}
typedef uint32_t Unsigned __attribute__((vector_size(kRegisterBytes)));
FLEDGE_INLINE Ints add_wrapping(Ints a, Ints b) {
  return Ints::each([&](int i) { return (Ints::Part)((Unsigned)a.part[i] + (Unsigned)b.part[i]); });
}
FLEDGE_INLINE Ints multiply_wrapping(Ints a, Ints b) {
  return Ints::each([&](int i) { return (Ints::Part)((Unsigned)a.part[i] * (Unsigned)b.part[i]); });
}
FLEDGE_INLINE Ints shift_right(Ints v, int bits) {
  return Ints::each([&](int i) { return (Ints::Part)((Unsigned)v.part[i] >> bits); });
}
FLEDGE_INLINE Floats as_floats(Ints v) {
  return Floats::each([&](int i) { return (Floats::Part)v.part[i]; });
}
FLEDGE_INLINE Ints as_ints(Floats v) {
  return Ints::each([&](int i) { return (Ints::Part)v.part[i]; });
}

FLEDGE_INLINE Floats load(const float* p) { return Floats::from(p); }
FLEDGE_INLINE Ints load(const int32_t* p) { return Ints::from(p); }
FLEDGE_INLINE void store(float* p, Floats v) { v.to(p); }
FLEDGE_INLINE void store(int32_t* p, Ints v) { v.to(p); }
FLEDGE_INLINE Floats broadcast(float x) {
  return Floats::each([&](int) { return x - Floats::Part{}; });
}
FLEDGE_INLINE Ints broadcast(int32_t x) {
  return Ints::each([&](int) { return x - Ints::Part{}; });
}
FLEDGE_INLINE Floats zeros() { return Floats{}; }
FLEDGE_INLINE Ints load_line(const void* p) { return Ints::from(p); }
FLEDGE_INLINE void store_line(void* p, Ints v) { v.to(p); }

// The compiler makes one instruction of each.
FLEDGE_INLINE Floats fmadd(Floats a, Floats b, Floats c) {
  return Floats::each([&](int i) { return a.part[i] * b.part[i] + c.part[i]; });
}
FLEDGE_INLINE Floats fmsub(Floats a, Floats b, Floats c) {
  return Floats::each([&](int i) { return a.part[i] * b.part[i] - c.part[i]; });
}
FLEDGE_INLINE Floats fnmadd(Floats a, Floats b, Floats c) {
  return Floats::each([&](int i) { return c.part[i] - a.part[i] * b.part[i]; });
}
FLEDGE_INLINE Floats maximum(Floats a, Floats b) {
  return Floats::each([&](int i) { return a.part[i] > b.part[i] ? a.part[i] : b.part[i]; });
}
FLEDGE_INLINE Floats minimum(Floats a, Floats b) {
  return Floats::each([&](int i) { return a.part[i] < b.part[i] ? a.part[i] : b.part[i]; });
}
FLEDGE_INLINE Floats absolute(Floats v) { return as_floats(as_ints(v) & broadcast(0x7fffffff)); }

template <class T>
FLEDGE_INLINE T one_of(Lanes<T> v, int lane) {
  return v.part[lane / kPart][lane % kPart];
}
FLEDGE_INLINE Ints lane_numbers() {
  constexpr int32_t kNumbers[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return load(kNumbers);
}

#define FLEDGE_COMPARISON(name, op, T)                                                \
  FLEDGE_INLINE Mask name(T a, T b) {                                                 \
    return Mask::each([&](int i) { return (Mask::Part)(a.part[i] op b.part[i]); });   \
  }
FLEDGE_COMPARISON(greater, >, Floats) FLEDGE_COMPARISON(at_least, >=, Floats)
FLEDGE_COMPARISON(greater, >, Ints) FLEDGE_COMPARISON(at_least, >=, Ints) FLEDGE_COMPARISON(equal, ==, Ints)
#undef FLEDGE_COMPARISON
template <class T>
FLEDGE_INLINE Lanes<T> select(Mask m, Lanes<T> yes, Lanes<T> no) {
  return Lanes<T>::each([&](int i) { return m.part[i] ? yes.part[i] : no.part[i]; });
}
FLEDGE_INLINE Mask mask_of(uint32_t bits) {
  constexpr int32_t kBits[] = {1,      1 << 1, 1 << 2,  1 << 3,  1 << 4,  1 << 5,  1 << 6,  1 << 7,
                               1 << 8, 1 << 9, 1 << 10, 1 << 11, 1 << 12, 1 << 13, 1 << 14, 1 << 15};
  Ints one = load(kBits);
  return equal(broadcast(static_cast<int32_t>(bits)) & one, one);
}
FLEDGE_INLINE uint32_t bits_of(Mask m) {
  uint32_t bits = 0;
#ifdef __AVX2__
  for (int i = 0; i < kVectorRegisters; ++i)
    bits |= static_cast<uint32_t>(_mm256_movemask_ps((__m256)m.part[i])) << i * kPart;
#else
  for (int lane = 0; lane < 16; ++lane) bits |= static_cast<uint32_t>(one_of(m, lane) & 1) << lane;
#endif
  return bits;
}
FLEDGE_INLINE Mask first_lanes(int count) { return greater(broadcast(count), lane_numbers()); }
FLEDGE_INLINE Floats load_first(const float* p, int count) {
  if (count >= 16) return load(p);
  float held[16] = {};
  for (int i = 0; i < count; ++i) held[i] = p[i];
  return load(held);
}
FLEDGE_INLINE Ints load_first(const int64_t* p, int count) {
  int32_t held[16] = {};
  for (int i = 0; i < count && i < 16; ++i) held[i] = static_cast<int32_t>(p[i]);
  return load(held);
}
FLEDGE_INLINE void store_selected(float* p, Mask m, Floats v) {
  float held[16];
  store(held, v);
  for (uint32_t bits = bits_of(m); bits; bits &= bits - 1) *p++ = held[__builtin_ctz(bits)];
}

// Halves are combined with halves, down to one lane.
template <class T, class Fold>
FLEDGE_INLINE T folded(Lanes<T> v, Fold fold) {
  typename Lanes<T>::Part all = v.part[0];
  if constexpr (kVectorRegisters == 2) all = fold(v.part[0], v.part[1]);
  if constexpr (kVectorRegisters == 4) all = fold(fold(v.part[0], v.part[2]), fold(v.part[1], v.part[3]));
  T lanes[kPart];
  std::memcpy(lanes, &all, sizeof(lanes));
  for (int width = kPart / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) lanes[i] = fold(lanes[i], lanes[i + width]);
  return lanes[0];
}
template <class T>
FLEDGE_INLINE T sum_of(Lanes<T> v) {
  return folded(v, [](auto a, auto b) { return a + b; });
}
FLEDGE_INLINE float max_of(Floats v) {
  return folded(v, [](auto a, auto b) { return a > b ? a : b; });
}
FLEDGE_INLINE Floats max_of_four(const Floats* v) {
  float held[16] = {max_of(v[0]), max_of(v[1]), max_of(v[2]), max_of(v[3])};
  return load(held);
}
FLEDGE_INLINE Floats sum_of_four(const Floats* v) {
  float held[16] = {sum_of(v[0]), sum_of(v[1]), sum_of(v[2]), sum_of(v[3])};
  return load(held);
}
FLEDGE_INLINE Floats broadcast_lane(Floats folded, int q) { return broadcast(one_of(folded, q)); }
FLEDGE_INLINE void store_four(float* p, Floats folded, int count) {
  for (int q = 0; q < count; ++q) p[q] = one_of(folded, q);
}

// Of numbers up to 2^22.
FLEDGE_INLINE Floats nearest(Floats v) {
  const Floats magic = broadcast(12582912.0f);  // 1.5 * 2^23: a float of that size has no fraction
  return (v + magic) - magic;
}
FLEDGE_INLINE Ints to_ints(Floats v) { return as_ints(v + broadcast(12582912.0f)) - broadcast(0x4b400000); }
FLEDGE_INLINE Floats to_floats(Ints v) {
  return Floats::each([&](int i) { return __builtin_convertvector(v.part[i], Floats::Part); });
}
FLEDGE_INLINE Floats lower(Floats v) {  // the next whole number below
  Floats n = nearest(v);
  return n - as_floats(greater(n, v) & as_ints(broadcast(1.0f)));
}
FLEDGE_INLINE Floats fraction(Floats v) { return v - lower(v); }
// Below 2^-126 it is 0; floor(n) is at most 127.
FLEDGE_INLINE Floats scale_by_power(Floats v, Floats n) {
  Floats least = broadcast(-126.0f), power = maximum(least, n);
  Ints factor = (to_ints(lower(power)) + broadcast(127)) << 23;
  return select(greater(least, n), zeros(), v * as_floats(factor));
}
FLEDGE_INLINE Floats mantissa(Floats v) {
  return as_floats((as_ints(v) & broadcast(0x007fffff)) | broadcast(0x3f800000));
}
FLEDGE_INLINE Floats exponent(Floats v) { return to_floats(shift_right(as_ints(v), 23) - broadcast(127)); }
FLEDGE_INLINE Floats reciprocal(Floats v) { return broadcast(1.0f) / v; }

typedef uint16_t HalfPart __attribute__((vector_size(kRegisterBytes / 2), aligned(1), may_alias));
FLEDGE_INLINE Floats load_bf16(const bf16* p) {
  return as_floats(Ints::each([&](int i) {
#ifdef __AVX2__
    return (Ints::Part)_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p) + i));
#else
    return __builtin_convertvector(reinterpret_cast<const HalfPart*>(p)[i], Ints::Part);
#endif
  }) << 16);
}
FLEDGE_INLINE void store_bf16(bf16* p, Floats v) {  // the nearest, an even one of two
  Ints bits = as_ints(v), odd = shift_right(bits, 16) & broadcast(1);
  Ints rounded = shift_right(add_wrapping(bits, odd + broadcast(0x7fff)), 16);
  rounded = select(greater(bits & broadcast(0x7fffffff), broadcast(0x7f800000)), broadcast(0x7fc0), rounded);  // NaN
#ifdef __AVX2__
  __m256i both = _mm256_packus_epi32((__m256i)rounded.part[0], (__m256i)rounded.part[1]);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(both, 0xd8));
#else
  for (int i = 0; i < kVectorRegisters; ++i)
    reinterpret_cast<HalfPart*>(p)[i] = __builtin_convertvector(rounded.part[i], HalfPart);
#endif
}
FLEDGE_INLINE void store_bf16(bf16* p, Floats low, Floats high) {
  store_bf16(p, low);
  store_bf16(p + 16, high);
}
FLEDGE_INLINE Ints load_bytes(const int8_t* p) {
#ifdef __AVX2__
  return Ints::each([&](int i) {
    return (Ints::Part)_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + i * 8)));
  });
#else
  int32_t held[16];
  for (int i = 0; i < 16; ++i) held[i] = p[i];
  return load(held);
#endif
}
FLEDGE_INLINE void store_bytes(int8_t* p, Ints v) {
#ifdef __AVX2__
  __m256i both = _mm256_packs_epi32((__m256i)v.part[0], (__m256i)v.part[1]);
  both = _mm256_permute4x64_epi64(both, 0xd8);
  __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
#else
  int32_t held[16];
  store(held, v);
  for (int i = 0; i < 16; ++i) p[i] = static_cast<int8_t>(held[i]);
#endif
}
// Numbers of 16 bits as IEEE 754 has them.
FLEDGE_INLINE Floats load_halves(const uint16_t* p) {
  return Floats::each([&](int i) {
#ifdef __AVX2__
    return (Floats::Part)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p) + i));
#else
    return (Floats::Part)vcvt_f32_f16(vld1_f16(reinterpret_cast<const float16_t*>(p) + i * kPart));
#endif
  });
}
FLEDGE_INLINE float half_to_float(uint16_t bits) {
  uint16_t held[16] = {bits};
  return one_of(load_halves(held), 0);
}
FLEDGE_INLINE void store_alternate(uint16_t* p, const uint16_t* from, bool odd) {
  for (int i = 0; i < 16; ++i) p[2 * i + odd] = from[i];
}

#if (defined(__AVX2__) && !defined(__AVXVNNI__)) || defined(__ARM_FEATURE_DOTPROD)
constexpr bool kSignedCodes = true;
#else
constexpr bool kSignedCodes = false;
#endif
#ifndef __AVX2__  // which has no such instruction: see codes.h
FLEDGE_INLINE Ints dot_bytes(Ints sum, Ints a, Ints b) {
#ifdef __ARM_FEATURE_DOTPROD
  return Ints::each([&](int i) {
    return (Ints::Part)vdotq_s32((int32x4_t)sum.part[i], (int8x16_t)a.part[i], (int8x16_t)b.part[i]);
  });
#else
  for (int byte = 0; byte < 4; ++byte)
    sum = sum + (shift_right(a, 8 * byte) & broadcast(0xff)) * ((b << (24 - 8 * byte)) >> 24);
  return sum;
#endif
}
#endif

}  // namespace fledge
