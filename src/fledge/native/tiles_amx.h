// Products with one panel, by AMX tiles (Intel, from Sapphire Rapids on). tiles_vectors.h has the same functions
// without AMX.
//
// All eight tiles are 16 rows of 64 bytes. Up to 32 rows by 32 outputs are accumulated at once:
//
//                       tile 6: outputs 0-15   tile 7: outputs 16-31       weights, 16 pairs of k each
//     tile 4: rows 0-15         tile 0                 tile 1
//     tile 5: rows 16-31        tile 2                 tile 3              activations, 32 k each
#pragma once
#include <asm/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "prefetch.h"
#include "vector_math.h"

namespace fledge {

// Where a pair's line of 64 bytes begins in a block (see gemm.h), in elements; half 0 is outputs 0-15, half 1 outputs
// 16-31. Each half is a tile of 1 KB.
inline int block_offset(int pair, int half) { return half * 512 + pair * 32; }

// How far ahead weights are prefetched, in bytes; and whether lines that won't be reused are prefetched apart.
inline long prefetch_distance(int) { return 16384; }
constexpr bool kPassing = false;

// How many rows go over a panel before the next panel is read: two tiles of them.
constexpr int kMostRowsAtOnce = 32;
inline int rows_at_once(int, int = 0) { return kMostRowsAtOnce; }

constexpr int kQueriesAtOnce = 32;  // in attention
constexpr bool kInterleavePages = true;  // see `PagePrefetch` in attention.h
inline int rows_per_unit(int) { return 32; }  // of an attention unit

// Asks the operating system for AMX state; false when it refuses.
inline bool request_tiles() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

inline void configure_tiles() {
  static const struct alignas(64) {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t column_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } config;
  _tile_loadconfig(&config);
}
inline void release_tiles() { _tile_release(); }

// c [rows rounded up to 16, 32] = a [rows rounded up to 16, inputs] times one panel; at most 32 rows. Strides count
// elements.
inline void multiply_panel(const bf16* a, int stride, int rows, const bf16* b, int inputs, float* c, int c_stride,
                           Prefetch prefetch) {
  _tile_zero(0);
  _tile_zero(1);
  if (rows <= 16) {
    for (int k = 0; k < inputs; k += 32, b += 1024) {
      Lines one = prefetch.next(kPrefetchUnit), two = prefetch.next(kPrefetchUnit);
      _tile_loadd(4, a + k, stride * 2);
      prefetch_lines(one, 0, 8);
      _tile_loadd(6, b, 64);
      prefetch_lines(one, 8, 8);
      _tile_loadd(7, b + 512, 64);
      prefetch_lines(two, 0, 8);
      _tile_dpbf16ps(0, 4, 6);
      prefetch_lines(two, 8, 8);
      _tile_dpbf16ps(1, 4, 7);
    }
  } else {
    _tile_zero(2);
    _tile_zero(3);
    const bf16* a2 = a + static_cast<size_t>(16) * stride;
    for (int k = 0; k < inputs; k += 32, b += 1024) {
      Lines one = prefetch.next(kPrefetchUnit), two = prefetch.next(kPrefetchUnit);
      _tile_loadd(6, b, 64);
      _tile_loadd(4, a + k, stride * 2);
      prefetch_lines(one, 0, 8);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, b + 512, 64);
      prefetch_lines(one, 8, 8);
      _tile_dpbf16ps(1, 4, 7);
      _tile_loadd(5, a2 + k, stride * 2);
      prefetch_lines(two, 0, 8);
      _tile_dpbf16ps(2, 5, 6);
      prefetch_lines(two, 8, 8);
      _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(2, c + static_cast<size_t>(16) * c_stride, c_stride * 4);
    _tile_stored(3, c + static_cast<size_t>(16) * c_stride + 16, c_stride * 4);
  }
  _tile_stored(0, c, c_stride * 4);
  _tile_stored(1, c + 16, c_stride * 4);
}

// Attention's second product: out [rows rounded up to 16, width] = weights [the same, 32 * blocks] times `blocks`
// pages of values [32, width], page k's at values(k) (kv_pages.h); added to what is there if `add`. At most 32 rows;
// width is a multiple of 16.
template <class Values>
void multiply_values(const bf16* weights, int stride, int rows, int blocks, Values&& values, float* out, int width,
                     bool add) {
  bool more = rows > 16;
  for (int column = 0; column < width; column += 32) {
    bool both = width - column > 16;
    float *o = out + column, *o2 = o + static_cast<size_t>(16) * width;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    if (add) {
      _tile_loadd(0, o, width * 4);
      if (both) _tile_loadd(1, o + 16, width * 4);
      if (more) _tile_loadd(2, o2, width * 4);
      if (more && both) _tile_loadd(3, o2 + 16, width * 4);
    }
    for (int k = 0; k < blocks; ++k) {
      const bf16 *v = values(k) + column / 16 * 512, *w = weights + k * 32;
      _tile_loadd(6, v, 64);
      _tile_loadd(4, w, stride * 2);
      _tile_dpbf16ps(0, 4, 6);
      if (both) { _tile_loadd(7, v + 512, 64); _tile_dpbf16ps(1, 4, 7); }
      if (more) { _tile_loadd(5, w + static_cast<size_t>(16) * stride, stride * 2); _tile_dpbf16ps(2, 5, 6); }
      if (more && both) _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, o, width * 4);
    if (both) _tile_stored(1, o + 16, width * 4);
    if (more) _tile_stored(2, o2, width * 4);
    if (more && both) _tile_stored(3, o2 + 16, width * 4);
  }
}

}  // namespace fledge
