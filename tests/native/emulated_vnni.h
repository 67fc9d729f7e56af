// AVX-VNNI's dot product of bytes by AVX2, for processors without it: included before the kernels.
#pragma once
#include <immintrin.h>
#define __AVXVNNI__ 1

inline __m256i emulated_dpbusd(__m256i sum, __m256i u, __m256i s) {  // unsigned by signed, exact
  __m256i low = _mm256_set1_epi16(0x00ff);
  __m256i even = _mm256_madd_epi16(_mm256_and_si256(u, low), _mm256_srai_epi16(_mm256_slli_epi16(s, 8), 8));
  __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(u, 8), _mm256_srai_epi16(s, 8));
  return _mm256_add_epi32(sum, _mm256_add_epi32(even, odd));
}
#define _mm256_dpbusd_avx_epi32 emulated_dpbusd
