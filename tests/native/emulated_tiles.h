// AMX tile instructions in plain C++, for processors without them: included before the kernels, it takes the place of the
// compiler's intrinsics. Rows and columns are as tiles_amx.h configures them: 16 rows of 64 bytes.
#pragma once
#define __AMX_BF16__ 1
#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace emulated {

struct Tile {
  alignas(64) uint8_t bytes[16][64];
};
inline Tile& tile(int i) {
  thread_local Tile tiles[8];
  return tiles[i];
}
inline void load(int i, const void* from, size_t stride) {
  for (int r = 0; r < 16; ++r) std::memcpy(tile(i).bytes[r], static_cast<const char*>(from) + r * stride, 64);
}
inline void store(int i, void* to, size_t stride) {
  for (int r = 0; r < 16; ++r) std::memcpy(static_cast<char*>(to) + r * stride, tile(i).bytes[r], 64);
}
inline float wide(uint16_t v) {
  uint32_t bits = static_cast<uint32_t>(v) << 16;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}
inline void multiply(int to, int a, int b) {
  auto *c = reinterpret_cast<float(*)[16]>(tile(to).bytes);
  auto *x = reinterpret_cast<uint16_t(*)[32]>(tile(a).bytes), *w = reinterpret_cast<uint16_t(*)[32]>(tile(b).bytes);
  for (int m = 0; m < 16; ++m)
    for (int pair = 0; pair < 16; ++pair)
      for (int n = 0; n < 16; ++n) {
        c[m][n] += wide(x[m][2 * pair]) * wide(w[pair][2 * n]);
        c[m][n] += wide(x[m][2 * pair + 1]) * wide(w[pair][2 * n + 1]);
      }
}

}  // namespace emulated

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#undef _tile_loadconfig
#undef _tile_release
#define _tile_loadd(i, from, stride) emulated::load(i, from, stride)
#define _tile_stored(i, to, stride) emulated::store(i, to, stride)
#define _tile_zero(i) std::memset(emulated::tile(i).bytes, 0, sizeof(emulated::Tile))
#define _tile_dpbf16ps(to, a, b) emulated::multiply(to, a, b)
#define _tile_loadconfig(config) (void)(config)
#define _tile_release() (void)0
