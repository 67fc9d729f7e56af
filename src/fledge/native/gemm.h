// Matrix products over prepacked bf16 weights.
//
// A weight [N, K] is cut into panels of 32 outputs; a panel is a stream of K/32 steps, each two 1 KB tiles in the
// layout bf16 dot products want, AMX tiles and AVX-512 registers alike (16 rows of k-pairs, 16 outputs across):
//
//     panel p:  | k 0..31: outputs 0-15 | k 0..31: outputs 16-31 | k 32..63: outputs 0-15 | ...
//
// so that a decode step reads every weight once, front to back. Each output is one accumulation over k in one order,
// whatever the number of rows: a row's result never depends on the rows beside it.
#pragma once
#include <sys/mman.h>

#include "threads.h"
#ifdef __AMX_BF16__
#include "tiles_amx.h"
#else
#include "tiles_avx512.h"
#endif

namespace fledge {

constexpr int kRowBlock = 256;  // rows whose activations stay in the L2 cache while panels stream by

struct Packed {
  bf16* data = nullptr;
  int outputs = 0, inputs = 0;  // N (unpadded), K (multiple of 32)
  size_t bytes = 0;
  int panels() const { return (outputs + kPanel - 1) / kPanel; }
  const bf16* panel(int p) const { return data + static_cast<size_t>(p) * kPanel * inputs; }
};

// interleaved: outputs are [2 * I] with gates first; panel p then holds gates and ups 16p .. 16p+15 side by side.
inline Packed pack(const bf16* weight, int outputs, int inputs, bool interleaved) {
  Packed w;
  w.outputs = outputs;
  w.inputs = inputs;
  w.bytes = static_cast<size_t>(w.panels()) * kPanel * inputs * sizeof(bf16);
  size_t huge = size_t(2) << 20;
  w.bytes = (w.bytes + huge - 1) / huge * huge;
  w.data = static_cast<bf16*>(std::aligned_alloc(huge, w.bytes));
  if (!w.data) return w;
  madvise(w.data, w.bytes, MADV_HUGEPAGE);
  int half = outputs / 2;
  bf16* out = w.data;
  for (int p = 0; p < w.panels(); ++p)
    for (int k0 = 0; k0 < inputs; k0 += 32)
      for (int tile = 0; tile < 2; ++tile)
        for (int pair = 0; pair < 16; ++pair)
          for (int n = 0; n < 16; ++n) {
            int row = interleaved ? (tile ? half + p * 16 + n : p * 16 + n) : p * kPanel + tile * 16 + n;
            const bf16* source = weight + static_cast<size_t>(row) * inputs + k0 + pair * 2;
            *out++ = row < outputs ? source[0] : 0;
            *out++ = row < outputs ? source[1] : 0;
          }
  return w;
}

// Inside Team::run: for every row and panel calls finish(row, panel, values[32]). `a` is [rows rounded up to 32, stride].
template <class Finish>
void gemm(Team& t, int id, const bf16* a, int stride, int rows, const Packed& w, Finish&& finish) {
  for (int base = 0; base < rows; base += kRowBlock) {
    int block = rows - base < kRowBlock ? rows - base : kRowBlock;
    t.for_each(id, w.panels(), [&](int p) {
      alignas(64) float c[32 * 32];
      for (int r = 0; r < block; r += 32) {
        const bf16* rows_in = a + static_cast<size_t>(base + r) * stride;
        int here = block - r < 32 ? block - r : 32;
        multiply_panel(rows_in, stride, here, w.panel(p), w.inputs, c, kPanel, r == 0);
        for (int i = 0; i < here; ++i) finish(base + r + i, p, c + i * 32);
      }
    });
  }
}

}  // namespace fledge
