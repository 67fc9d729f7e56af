// Vectors of 16 numbers by AVX-512. vectors_portable.h has the same functions for other processors.
#pragma once
#include <immintrin.h>

namespace fledge {

using Floats = __m512;
using Ints = __v16si;
using Mask = __mmask16;
constexpr int kRegisters = 32, kVectorRegisters = 1;  // how many there are, and how many hold a vector

inline Floats load(const float* p) { return _mm512_loadu_ps(p); }
inline Ints load(const int32_t* p) { return (Ints)_mm512_loadu_si512(p); }
inline void store(float* p, Floats v) { _mm512_storeu_ps(p, v); }
inline void store(int32_t* p, Ints v) { _mm512_storeu_si512(p, (__m512i)v); }
inline Floats broadcast(float x) { return _mm512_set1_ps(x); }
inline Ints broadcast(int32_t x) { return (Ints)_mm512_set1_epi32(x); }
inline Floats zeros() { return _mm512_setzero_ps(); }

// 64 bytes from anywhere, and to anywhere.
inline Ints load_line(const void* p) { return (Ints)_mm512_loadu_si512(p); }
inline void store_line(void* p, Ints v) { _mm512_storeu_si512(p, (__m512i)v); }

// a * b + c, a * b - c, c - a * b, rounded once.
inline Floats fmadd(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
inline Floats fmsub(Floats a, Floats b, Floats c) { return _mm512_fmsub_ps(a, b, c); }
inline Floats fnmadd(Floats a, Floats b, Floats c) { return _mm512_fnmadd_ps(a, b, c); }
// The second one where either isn't a number.
inline Floats maximum(Floats a, Floats b) { return _mm512_max_ps(a, b); }
inline Floats minimum(Floats a, Floats b) { return _mm512_min_ps(a, b); }
inline Floats absolute(Floats v) { return _mm512_abs_ps(v); }
inline Ints shift_right(Ints v, int bits) { return (Ints)_mm512_srli_epi32((__m512i)v, bits); }  // of unsigned numbers
inline Ints add_wrapping(Ints a, Ints b) { return (Ints)_mm512_add_epi32((__m512i)a, (__m512i)b); }
inline Ints multiply_wrapping(Ints a, Ints b) { return (Ints)_mm512_mullo_epi32((__m512i)a, (__m512i)b); }

// The first `count` numbers, and zeros after them.
inline Mask first_lanes(int count) {
  return count >= 16 ? Mask(0xffff) : (count <= 0 ? Mask(0) : static_cast<Mask>((1u << count) - 1));
}
inline Floats load_first(const float* p, int count) { return _mm512_maskz_loadu_ps(first_lanes(count), p); }
inline Ints load_first(const int64_t* p, int count) {  // token ids
  Mask live = first_lanes(count);
  __m256i low = _mm512_cvtepi64_epi32(_mm512_maskz_loadu_epi64(static_cast<__mmask8>(live), p));
  __m256i top = _mm512_cvtepi64_epi32(_mm512_maskz_loadu_epi64(static_cast<__mmask8>(live >> 8), p + 8));
  return (Ints)_mm512_inserti64x4(_mm512_castsi256_si512(low), top, 1);
}

inline Mask greater(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
inline Mask at_least(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
inline Mask greater(Ints a, Ints b) { return _mm512_cmpgt_epi32_mask((__m512i)a, (__m512i)b); }
inline Mask at_least(Ints a, Ints b) { return _mm512_cmpge_epi32_mask((__m512i)a, (__m512i)b); }
inline Floats select(Mask m, Floats yes, Floats no) { return _mm512_mask_mov_ps(no, m, yes); }
inline Ints select(Mask m, Ints yes, Ints no) { return (Ints)_mm512_mask_mov_epi32((__m512i)no, m, (__m512i)yes); }
inline uint32_t bits_of(Mask m) { return m; }
inline Mask mask_of(uint32_t bits) { return static_cast<Mask>(bits); }  // the lower 16
// Stores the lanes that `m` names one after the other.
inline void store_selected(float* p, Mask m, Floats v) { _mm512_mask_compressstoreu_ps(p, m, v); }

// Lanes are combined in a fixed order.
inline float sum_of(Floats v) { return _mm512_reduce_add_ps(v); }
inline float max_of(Floats v) { return _mm512_reduce_max_ps(v); }
inline int32_t sum_of(Ints v) { return _mm512_reduce_add_epi32((__m512i)v); }
inline Ints lane_numbers() { return (Ints)_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }

// Reduces four vectors at once, to their maxima or sums: lane q of the result is vector q's. A vector's lanes are
// combined in the same order whatever the other vectors hold.
template <class Fold>
inline Floats fold_four(const Floats* v, Fold fold) {
  __m512 a = fold(_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpackhi_ps(v[0], v[1]));
  __m512 b = fold(_mm512_unpacklo_ps(v[2], v[3]), _mm512_unpackhi_ps(v[2], v[3]));
  __m512d x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);
  a = fold(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
  a = fold(a, _mm512_shuffle_f32x4(a, a, 0x4e));
  return fold(a, _mm512_shuffle_f32x4(a, a, 0xb1));  // the four are in every quarter
}
inline Floats max_of_four(const Floats* v) {
  return fold_four(v, [](__m512 a, __m512 b) { return _mm512_max_ps(a, b); });
}
inline Floats sum_of_four(const Floats* v) {
  return fold_four(v, [](__m512 a, __m512 b) { return _mm512_add_ps(a, b); });
}
inline Floats broadcast_lane(Floats folded, int q) { return _mm512_permutevar_ps(folded, _mm512_set1_epi32(q)); }
inline void store_four(float* p, Floats folded, int count) {  // the first `count` of the four
  _mm_mask_storeu_ps(p, static_cast<__mmask8>((1 << count) - 1), _mm512_castps512_ps128(folded));
}

// Rounding to whole numbers, and what is above the next lower one.
inline Floats nearest(Floats v) { return _mm512_roundscale_ps(v, 0); }
inline Floats fraction(Floats v) { return _mm512_reduce_ps(v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
inline Floats scale_by_power(Floats v, Floats n) { return _mm512_scalef_ps(v, n); }  // v * 2^floor(n)
inline Floats mantissa(Floats v) { return _mm512_getmant_ps(v, _MM_MANT_NORM_1_2, _MM_MANT_SIGN_zero); }
inline Floats exponent(Floats v) { return _mm512_getexp_ps(v); }
inline Floats reciprocal(Floats v) {  // by one step of Newton's method: a third of the time of a division
  __m512 about = _mm512_rcp14_ps(v);
  return _mm512_mul_ps(about, _mm512_fnmadd_ps(v, about, _mm512_set1_ps(2.0f)));
}
inline Floats as_floats(Ints v) { return (Floats)v; }  // the same bits
inline Floats to_floats(Ints v) { return _mm512_cvtepi32_ps((__m512i)v); }
inline Ints to_ints(Floats v) { return (Ints)_mm512_cvtps_epi32(v); }  // the nearest

inline Floats load_bf16(const bf16* p) {
  __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}
#ifdef __AVX512BF16__
inline void store_bf16(bf16* p, Floats v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), (__m256i)_mm512_cvtneps_pbh(v));
}
inline void store_bf16(bf16* p, Floats low, Floats high) {
  _mm512_storeu_si512(p, (__m512i)_mm512_cvtne2ps_pbh(high, low));
}
#else
inline void store_bf16(bf16* p, Floats v) {
  __m512i bits = _mm512_castps_si512(v), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  rounded = _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), _mm512_set1_epi32(0x7fc00000));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
}
inline void store_bf16(bf16* p, Floats low, Floats high) {
  store_bf16(p, low);
  store_bf16(p + 16, high);
}
#endif
inline Ints load_bytes(const int8_t* p) {
  return (Ints)_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline void store_bytes(int8_t* p, Ints v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8((__m512i)v));
}
// Numbers of 16 bits as IEEE 754 has them.
inline Floats load_halves(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline float half_to_float(uint16_t bits) { return _cvtsh_ss(bits); }
// 16 numbers of 16 bits into every other place of p [32], beginning with the first or, if `odd`, the second one. The
// others are not touched: another thread may be writing them.
inline void store_alternate(uint16_t* p, const uint16_t* from, bool odd) {
  __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  if (odd) wide = _mm512_slli_epi32(wide, 16);
  _mm512_mask_storeu_epi16(p, odd ? 0xaaaaaaaa : 0x55555555, wide);
}

// Whether codes of 8 bits are stored as signed bytes, less 128.
constexpr bool kSignedCodes = false;
// sum + the products of each lane's four bytes, of which `a`'s are codes and `b`'s signed.
inline Ints dot_bytes(Ints sum, Ints a, Ints b) {
#ifdef __AVX512VNNI__
  return (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
#else
  __m512i low = _mm512_set1_epi32(0x00ff00ff), x = (__m512i)a, y = (__m512i)b;
  __m512i even = _mm512_madd_epi16(_mm512_and_si512(x, low), _mm512_srai_epi16(_mm512_slli_epi16(y, 8), 8));
  __m512i odd = _mm512_madd_epi16(_mm512_srli_epi16(x, 8), _mm512_srai_epi16(y, 8));
  return sum + (Ints)_mm512_add_epi32(even, odd);
#endif
}

}  // namespace fledge
