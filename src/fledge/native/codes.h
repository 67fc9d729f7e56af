// Products with weights of 4 to 8 bits (weight.h): activations are rounded to 8 bits, too.
//
// Activations have one scale per 32 inputs. The products of a block's 32 inputs, or of its halves where 16 share a
// weight's scale, are summed exactly in int32; these sums are added up in float, block after block, whatever the number
// of rows:
//
//     c[row]  +=  (dot(u, a) - zero * sum(a)) * scale * a.scale  -  minimum * a.scale * sum(a)
//
// All rows pass over a block before the next one, so that its codes are loaded and unpacked once.
#pragma once
#include "weight.h"

namespace fledge {

// Rows of activations in 8 bits.
struct Rows8 {
  Buffer<int8_t> values;  // [rows, inputs]
  Buffer<float> scale;    // [rows, inputs / 32]
  Buffer<int32_t> sum;    // [rows, inputs / 16], of the values
  void ensure(int rows, int inputs) {
    values.ensure(static_cast<size_t>(rows) * inputs);
    scale.ensure(static_cast<size_t>(rows) * inputs / kBlock);
    sum.ensure(static_cast<size_t>(rows) * inputs / 16);
  }
};

// Rounds row r. from(i) gives 16 inputs from i on.
template <class From>
inline void round_row(From&& from, int inputs, const Rows8& to, int r) {
  int8_t* values = to.values.data + static_cast<size_t>(r) * inputs;
  float* scale = to.scale.data + static_cast<size_t>(r) * inputs / kBlock;
  int32_t* sum = to.sum.data + static_cast<size_t>(r) * inputs / 16;
  for (int i = 0; i < inputs; i += kBlock, values += kBlock, sum += 2) {
    Floats low = from(i), high = from(i + 16);
    float most = max_of(maximum(absolute(low), absolute(high)));
    Floats factor = broadcast(most > 0 ? 127.0f / most : 0.0f);
    Ints a = to_ints(low * factor), b = to_ints(high * factor);
    store_bytes(values, a);
    store_bytes(values + 16, b);
    sum[0] = sum_of(a);
    sum[1] = sum_of(b);
    *scale++ = most / 127.0f;
  }
}

[[gnu::always_inline]] inline int32_t four_bytes(const int8_t* p) {
  int32_t four;
  std::memcpy(&four, p, 4);
  return four;
}

// The codes of a block. dot(a, sum) adds, to sum[row][group][half], products with `kRows` rows of 32 activations.
#if defined(__AVX2__) && !defined(__AVX512BW__)
#ifdef __AVXVNNI__
constexpr bool kVnni = true;
FLEDGE_INLINE __m256i dot_bytes(__m256i sum, __m256i u, __m256i v) { return _mm256_dpbusd_avx_epi32(sum, u, v); }
#else
constexpr bool kVnni = false;
FLEDGE_INLINE __m256i dot_bytes(__m256i sum, __m256i, __m256i) { return sum; }  // never called
#endif

template <int kBits, int kGroups>
struct Codes {
  static constexpr int kMostRows = 2;  // whose sums fit the registers
  const char* codes;
  explicit Codes(const char* from) : codes(from) {}

  template <int kRows>
  FLEDGE_INLINE void dot(const int8_t* const (&a)[kRows], Ints (&sum)[kRows][kGroups][2]) const {
    const __m256i ones = _mm256_set1_epi16(1), low = _mm256_set1_epi8(15);
    auto line = [&](int quad, int j) {
      return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + quad * 128) + j);
    };
    auto four = [&](int r, int quad) { return _mm256_set1_epi32(four_bytes(a[r] + quad * 4)); };
    // Loops over quads aren't unrolled: the compiler would gather all their products in memory before it adds them up.
    if constexpr (kBits == 4) {
      __m256i pairs[kRows][4] = {};
#pragma GCC unroll 1
      for (int q = 0; q < 4; ++q) {
        __m256i first[kRows], second[kRows];
#pragma GCC unroll 2
        for (int r = 0; r < kRows; ++r) first[r] = four(r, q), second[r] = four(r, q + 4);
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) {
          __m256i w = line(q, j), lower = _mm256_and_si256(w, low);
          __m256i upper = _mm256_and_si256(_mm256_srli_epi16(w, 4), low);
#pragma GCC unroll 2
          for (int r = 0; r < kRows; ++r) {
            if constexpr (kVnni) {
              pairs[r][j] = dot_bytes(dot_bytes(pairs[r][j], lower, first[r]), upper, second[r]);
              continue;
            }
            // 8 * 2 * 15 * 127 fit 16 bits
            pairs[r][j] = _mm256_add_epi16(pairs[r][j], _mm256_maddubs_epi16(lower, first[r]));
            pairs[r][j] = _mm256_add_epi16(pairs[r][j], _mm256_maddubs_epi16(upper, second[r]));
          }
        }
      }
#pragma GCC unroll 2
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j)
          sum[r][0][j / 2].part[j % 2] += (Ints::Part)(kVnni ? pairs[r][j] : _mm256_madd_epi16(pairs[r][j], ones));
    } else {
      constexpr int kQuads = 8 / kGroups, kStep = kBits == 8 || kVnni ? 1 : 2;  // quads whose products fit 16 bits together
#pragma GCC unroll 2
      for (int g = 0; g < kGroups; ++g) {
        __m256i total[kRows][4] = {};
#pragma GCC unroll 1
        for (int q = g * kQuads; q < (g + 1) * kQuads; q += kStep) {
          __m256i v[kRows][kStep];
#pragma GCC unroll 2
          for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
            for (int s = 0; s < kStep; ++s) v[r][s] = four(r, q + s);
#pragma GCC unroll 4
          for (int j = 0; j < 4; ++j) {
            __m256i w = line(q, j), size = kBits == 8 ? _mm256_abs_epi8(w) : w;
            __m256i next = kStep == 2 ? line(q + 1, j) : w;
#pragma GCC unroll 2
            for (int r = 0; r < kRows; ++r) {
              if constexpr (kVnni) {
                total[r][j] = dot_bytes(total[r][j], w, v[r][0]);
                continue;
              }
              __m256i pairs = _mm256_maddubs_epi16(size, kBits == 8 ? _mm256_sign_epi8(v[r][0], w) : v[r][0]);
              if constexpr (kStep == 2)  // 2 * 2 * 63 * 127 fit
                pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(next, v[r][1]));
              total[r][j] = _mm256_add_epi32(total[r][j], _mm256_madd_epi16(pairs, ones));
            }
          }
        }
#pragma GCC unroll 2
        for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
          for (int j = 0; j < 4; ++j) sum[r][g][j / 2].part[j % 2] += (Ints::Part)total[r][j];
      }
    }
  }
};
#else
template <int kBits, int kGroups>
struct Codes {
  static constexpr int kMostRows = 1;
  Ints line[16];
  explicit Codes(const char* codes) {
    Ints low = broadcast(0x0f0f0f0f);
#pragma GCC unroll 16
    for (int i = 0; i < (kBits == 4 ? 8 : 16); ++i) {
      line[i] = load_line(codes + i * 64);
      if constexpr (kBits == 4) {
        line[i + 8] = shift_right(line[i], 4) & low;
        line[i] = line[i] & low;
      }
    }
  }
  template <int kRows>
  [[gnu::always_inline]] inline void dot(const int8_t* const (&a)[kRows], Ints (&sum)[kRows][kGroups][2]) const {
#pragma GCC unroll 8
    for (int quad = 0; quad < 8; ++quad) {
      Ints v = broadcast(four_bytes(a[0] + quad * 4));
      auto& to = sum[0][quad * kGroups / 8];
      to[0] = dot_bytes(to[0], line[quad * 2], v);
      to[1] = dot_bytes(to[1], line[quad * 2 + 1], v);
    }
  }
};
#endif

// c [rows, 32] = rows `first`, first + 1, ... of `x` times a panel at `at`.
template <int kFormat>
inline void multiply_panel(const Rows8& x, int first, int rows, int inputs, int zero, const char* at, float* c,
                           Prefetch prefetch) {
  constexpr Format f = kFormats[kFormat];
  constexpr int kGroups = f.groups;
  using Block = Codes<f.bits, kGroups>;
  if (f.bits == 8 && kSignedCodes) zero -= 128;
  std::fill_n(c, rows * kPanel, 0.0f);
  // Many lines of a block are prefetched a few after each row, as a burst holds up the loads behind it; few in two goes.
  constexpr int kLines = f.block_bytes() / kLine, kHalf = kLines / 2;
  constexpr bool kSpread = kLines > 12;
  const int soon = kSpread ? kLines / (rows + 1) + 1 : kHalf;
  for (int b = 0; b < inputs / kBlock; ++b, at += f.block_bytes()) {
    Lines lines = prefetch.next(f.block_bytes());
    int fetched = soon;
    prefetch_lines(lines, 0, kSpread ? soon : kHalf);
    auto fetch_more = [&] {
      if (fetched >= kLines) return;
      int count = kSpread ? std::min(soon, kLines - fetched) : kLines - kHalf;
      prefetch_lines(lines, fetched, count);
      fetched += count;
    };
    Floats scale[kGroups][2], minimum[kGroups][2];
#pragma GCC unroll 4
    for (int i = 0; i < kGroups * 2; ++i) {
      scale[i / 2][i % 2] = load_halves(reinterpret_cast<const uint16_t*>(at) + i * 16);
      if constexpr (f.minima)
        minimum[i / 2][i % 2] = load_halves(reinterpret_cast<const uint16_t*>(at) + (kGroups * 2 + i) * 16);
    }
    Block block(at + f.head_bytes());
    auto pass = [&](auto count, int r) {
      constexpr int kRows = decltype(count)::value;
      const int8_t* a[kRows];
      const int32_t* total[kRows];
      Ints sum[kRows][kGroups][2];
      for (int i = 0; i < kRows; ++i) {
        size_t row = first + r + i;
        a[i] = x.values.data + row * inputs + b * kBlock;
        total[i] = x.sum.data + row * inputs / 16 + b * 2;
        for (int g = 0; g < kGroups; ++g) {
          int32_t of_group = kGroups == 2 ? total[i][g] : total[i][0] + total[i][1];
          sum[i][g][0] = sum[i][g][1] = broadcast(f.minima ? 0 : -zero * of_group);
        }
      }
      block.dot(a, sum);
      for (int i = 0; i < kRows; ++i) {
        float of_row = x.scale.data[(first + r + i) * (static_cast<size_t>(inputs) / kBlock) + b];
        Floats factor = broadcast(of_row);
        float* out = c + (r + i) * kPanel;
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
          Floats y = load(out + half * 16);
#pragma GCC unroll 2
          for (int g = 0; g < kGroups; ++g) {
            y = fmadd(to_floats(sum[i][g][half]), scale[g][half] * factor, y);
            if constexpr (f.minima) {
              int32_t of_group = kGroups == 2 ? total[i][g] : total[i][0] + total[i][1];
              y = fnmadd(minimum[g][half], broadcast(of_row * static_cast<float>(of_group)), y);
            }
          }
          store(out + half * 16, y);
        }
      }
    };
    int r = 0;
    for (; r + Block::kMostRows <= rows; r += Block::kMostRows) {
      pass(std::integral_constant<int, Block::kMostRows>(), r);
      for (int i = 0; i < Block::kMostRows; ++i) fetch_more();
    }
    for (; r < rows; ++r) {
      pass(std::integral_constant<int, 1>(), r);
      fetch_more();
    }
  }
}

// The same with panel p of a weight.
inline void multiply_codes(const Rows8& x, int first, int rows, const Weight& w, int p, float* c, Prefetch prefetch) {
  const Part& part = w.part_of(p);
  switch (part.format - kFormats) {
#define FLEDGE_FORMAT(n) \
  case n: return multiply_panel<n>(x, first, rows, w.inputs, part.zero, w.at(p), c, prefetch);
    FLEDGE_FORMAT(1) FLEDGE_FORMAT(2) FLEDGE_FORMAT(3) FLEDGE_FORMAT(4)
    FLEDGE_FORMAT(5) FLEDGE_FORMAT(6) FLEDGE_FORMAT(7)
#undef FLEDGE_FORMAT
  }
}

}  // namespace fledge
