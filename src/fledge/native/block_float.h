// The microkernel of tiles_vectors.h in float, where no instruction multiplies bf16. block_bf16.h has the same
// functions for AVX-512 bf16.
//
// A line of weights becomes two vectors of floats, its outputs' numbers at k and those at k + 1, which are the lower
// and the upper halves of its words:
//
//     line        | k, k+1: output 0 | k, k+1: output 1 | ...          sum[row]  +=  x[row][k] * even
//     even        | k        << 16   | ...                             sum[row]  +=  x[row][k + 1] * odd
//     odd         | k+1, low bits 0  | ...
//
// Where the sums of all rows for both halves of a panel don't fit the registers, one half follows the other.
#pragma once
#include "prefetch.h"
#include "vector_math.h"

namespace fledge {

constexpr int kVectors = kRegisters / kVectorRegisters;  // that the registers hold
constexpr int kRowGroup = kVectors == 32 ? 12 : 6;       // rows whose sums for a half fit them beside the weights
constexpr int kWideRows = kVectors == 32 ? 12 : 3;       // rows whose sums for both halves do
constexpr int kMostSteps = 8;                            // of 32 k at once: their floats stay in the L1 cache
static_assert(kMostSteps * 32 >= 256, "a head's dimensions, and the keys of a split, are one call");

inline int steps_at_once(int, int) { return kMostSteps; }

// Between two uses of what lies in the L1 cache: the compiler reads it twice, instead of keeping it in a register that
// sums need. A sum that goes through memory takes twice the time.
[[gnu::always_inline]] inline void read_again(const void* p) { asm volatile("" ::"r"(p) : "memory"); }

// c [kRows, 32] = a [kRows, 32 * steps] times the blocks b(0), b(1), ..., or added to what is there if `add`.
template <int kRows, class Step>
inline void block(const bf16* a, int stride, int steps, Step&& b, float* c, int c_stride, bool add, Prefetch& prefetch,
                  RowGroup group) {
  constexpr int kHalves = kRows <= kWideRows ? 2 : 1;  // at once
  alignas(64) float x[kRows][kMostSteps * 32];
  alignas(64) int32_t upper[16];  // halves of words
  store(upper, broadcast(~0xffff));
  for (int r = 0; r < kRows; ++r)
    for (int k = 0; k < steps * 32; k += 16) store(x[r] + k, load_bf16(a + static_cast<size_t>(r) * stride + k));
  for (int half = 0; half < 2; half += kHalves) {
    Floats sum[kRows][kHalves];
    float* to = c + half * 16;
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
      for (int j = 0; j < kHalves; ++j)
        sum[r][j] = add ? load(to + static_cast<size_t>(r) * c_stride + j * 16) : zeros();
    for (int s = 0; s < steps; ++s) {
      const bf16* w = b(s) + block_offset(0, half);
      for (int first = 0; first < 16; first += 8) {
        bool due = group.prefetches(s) && (kHalves == 2 || first / 8 == half);  // evenly over both passes
        Lines unit = due ? prefetch.next(kPrefetchUnit) : Lines{};
#pragma GCC unroll 1
        for (int pair = first; pair < first + 8; ++pair) {
          prefetch_lines(unit, (pair - first) * 2, 2);
          int k = s * 32 + pair * 2;
#pragma GCC unroll 2
          for (int j = 0; j < kHalves; ++j) {
            const bf16* line = w + block_offset(pair, j);
            Floats even = as_floats(load_line(line) << 16);
#pragma GCC unroll 12
            for (int r = 0; r < kRows; ++r) sum[r][j] = fmadd(broadcast(x[r][k]), even, sum[r][j]);
            read_again(upper);
            Floats odd = as_floats(load_line(line) & load_line(upper));
#pragma GCC unroll 12
            for (int r = 0; r < kRows; ++r) sum[r][j] = fmadd(broadcast(x[r][k + 1]), odd, sum[r][j]);
            read_again(upper);
          }
        }
      }
    }
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
      for (int j = 0; j < kHalves; ++j) store(to + static_cast<size_t>(r) * c_stride + j * 16, sum[r][j]);
  }
}

}  // namespace fledge
