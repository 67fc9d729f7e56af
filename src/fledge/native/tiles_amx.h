// Block products with AMX tiles (Intel, from Sapphire Rapids on). tiles_avx512.h has the same functions without AMX.
//
// All eight tiles are 16 rows by 64 bytes: 0-3 accumulate, 4-5 hold activations, 6-7 weights.
#pragma once
#include <asm/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "prefetch.h"
#include "vector_math.h"

namespace fledge {

constexpr int kTileLanes = 16;  // queries that attention multiplies at once

// Asks the kernel for AMX state; false when it refuses.
inline bool request_tiles() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

inline void configure_tiles() {
  struct alignas(64) {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t column_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } config;
  _tile_loadconfig(&config);
}
inline void release_tiles() { _tile_release(); }

// c [rows rounded up to 16, 32] = a [rows rounded up to 16, inputs] times one panel; at most 32 rows. Strides count
// elements. `ahead` is what to ask for meanwhile, spread over the tile instructions.
inline void multiply_panel(const bf16* a, int stride, int rows, const bf16* b, int inputs, float* c, int c_stride,
                           Ahead ahead) {
  _tile_zero(0);
  _tile_zero(1);
  if (rows <= 16) {
    for (int k = 0; k < inputs; k += 32, b += 1024) {
      _tile_loadd(4, a + k, stride * 2);
      ahead.ask(4);
      _tile_loadd(6, b, 64);
      ahead.ask(4);
      _tile_loadd(7, b + 512, 64);
      ahead.ask(4);
      _tile_dpbf16ps(0, 4, 6);
      ahead.ask(4);
      _tile_dpbf16ps(1, 4, 7);
    }
  } else {
    _tile_zero(2);
    _tile_zero(3);
    const bf16* a2 = a + static_cast<size_t>(16) * stride;
    for (int k = 0; k < inputs; k += 32, b += 1024) {
      _tile_loadd(6, b, 64);
      _tile_loadd(4, a + k, stride * 2);
      ahead.ask(4);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, b + 512, 64);
      ahead.ask(4);
      _tile_dpbf16ps(1, 4, 7);
      _tile_loadd(5, a2 + k, stride * 2);
      ahead.ask(4);
      _tile_dpbf16ps(2, 5, 6);
      ahead.ask(4);
      _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(2, c + static_cast<size_t>(16) * c_stride, c_stride * 4);
    _tile_stored(3, c + static_cast<size_t>(16) * c_stride + 16, c_stride * 4);
  }
  _tile_stored(0, c, c_stride * 4);
  _tile_stored(1, c + 16, c_stride * 4);
}

// out [16, width] += weights [16, 32 * blocks] times the blocks' values, block k's [32, width] in value layout at
// values(k); ahead(k) is what to ask for while block k is added. Width is a multiple of 16; only the first `rows` rows
// matter.
template <class Values, class Upcoming>
void add_values(const bf16* weights, int stride, int rows, int blocks, Values&& values, Upcoming&& ahead, float* out,
                int width) {
  (void)rows;
  for (int column = 0; column < width; column += 64) {
    int left = (width - column) / 16;
    float* o = out + column;
    _tile_loadd(0, o, width * 4);
    if (left > 1) _tile_loadd(1, o + 16, width * 4);
    if (left > 2) _tile_loadd(2, o + 32, width * 4);
    if (left > 3) _tile_loadd(3, o + 48, width * 4);
    for (int k = 0; k < blocks; ++k) {
      const bf16* v = values(k) + column / 16 * 512;
      Ahead now = column == 0 ? ahead(k) : Ahead{};
      _tile_loadd(4, weights + k * 32, stride * 2);
      now.ask(8);
      _tile_loadd(6, v, 64);
      now.ask(8);
      _tile_dpbf16ps(0, 4, 6);
      if (left > 1) { _tile_loadd(7, v + 512, 64); _tile_dpbf16ps(1, 4, 7); }
      if (left > 2) { _tile_loadd(6, v + 1024, 64); _tile_dpbf16ps(2, 4, 6); }
      if (left > 3) { _tile_loadd(7, v + 1536, 64); _tile_dpbf16ps(3, 4, 7); }
    }
    _tile_stored(0, o, width * 4);
    if (left > 1) _tile_stored(1, o + 16, width * 4);
    if (left > 2) _tile_stored(2, o + 32, width * 4);
    if (left > 3) _tile_stored(3, o + 48, width * 4);
  }
}

}  // namespace fledge
