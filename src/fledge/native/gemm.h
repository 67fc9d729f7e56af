// Matrix products with AMX tiles over prepacked bf16 weights.
//
// A weight [N, K] is cut into panels of 32 outputs; a panel is a stream of K/32 steps, each two 1 KB tiles in the
// layout TDPBF16PS wants (16 rows of k-pairs, 16 outputs across):
//
//     panel p:  | k 0..31: outputs 0-15 | k 0..31: outputs 16-31 | k 32..63: outputs 0-15 | ...
//
// so that a decode step reads every weight once, front to back. Each output is one accumulation over k in one order,
// whatever the number of rows: a row's result never depends on the rows beside it.
#pragma once
#include <sys/mman.h>

#include "threads.h"
#include "vector_math.h"

namespace fledge {

constexpr int kPanel = 32;      // outputs per panel
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

// All eight tiles 16 rows by 64 bytes: 0-3 accumulate, 4-5 hold activations, 6-7 weights.
inline void configure_tiles() {
  struct alignas(64) {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t column_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } config;
  _tile_loadconfig(&config);
}

inline void prefetch_step(const bf16* p) {  // the 2 KB of one k-step, some steps ahead
  const char* address = reinterpret_cast<const char*>(p) + 6144;
  for (int line = 0; line < 32; ++line) _mm_prefetch(address + line * 64, _MM_HINT_T0);
}

// One panel for up to 16 rows. c is [16][32].
inline void panel_16(const bf16* a, int stride, const bf16* b, int inputs, float* c, bool prefetch) {
  _tile_zero(0);
  _tile_zero(1);
  for (int k = 0; k < inputs; k += 32, b += 1024) {
    if (prefetch) prefetch_step(b);
    _tile_loadd(4, a + k, stride * 2);
    _tile_loadd(6, b, 64);
    _tile_loadd(7, b + 512, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
  }
  _tile_stored(0, c, 128);
  _tile_stored(1, c + 16, 128);
}

// One panel for up to 32 rows. c is [32][32].
inline void panel_32(const bf16* a, int stride, const bf16* b, int inputs, float* c, bool prefetch) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  const bf16* a2 = a + static_cast<size_t>(16) * stride;
  for (int k = 0; k < inputs; k += 32, b += 1024) {
    if (prefetch) prefetch_step(b);
    _tile_loadd(6, b, 64);
    _tile_loadd(4, a + k, stride * 2);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b + 512, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, a2 + k, stride * 2);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, c, 128);
  _tile_stored(1, c + 16, 128);
  _tile_stored(2, c + 512, 128);
  _tile_stored(3, c + 512 + 16, 128);
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
        if (here <= 16) panel_16(rows_in, stride, w.panel(p), w.inputs, c, r == 0);
        else panel_32(rows_in, stride, w.panel(p), w.inputs, c, r == 0);
        for (int i = 0; i < here; ++i) finish(base + r + i, p, c + i * 32);
      }
    });
  }
}

}  // namespace fledge
