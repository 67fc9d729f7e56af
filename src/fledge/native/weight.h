// Weights [N, K] in the order that products read them.
//
// A weight is cut into panels of 32 outputs, a panel into blocks of 32 inputs: so a forward reads every weight once,
// front to back, while threads share out the panels of a product. A block's format is one of `kFormats`:
//
//     bf16     32 lines of 64 bytes: two neighbours of k, a pair, for 16 outputs, as the dot products take them:
//                  vectors    | k 0,1: outputs 0-15 | k 0,1: outputs 16-31 | k 2,3: outputs 0-15 | ...    line after line
//                  AMX        | k 0,1 .. 30,31: outputs 0-15 | k 0,1 .. 30,31: outputs 16-31 |            two tiles
//     codes    w = scale * (u - zero) - minimum, as all block formats of GGUF files are:
//                  | 32 scales, f16; twice 32 where 16 inputs share one | minima likewise, if any | codes u |
//              8 bits    a line has four neighbours of k, a quad, for 16 outputs:
//                        | k 0..3: outputs 0-15 | k 0..3: outputs 16-31 | k 4..7: outputs 0-15 | ...
//              4 bits    a line has two of these, quad q in the lower halves of bytes, quad q + 4 in the upper ones
//
// One weight may have parts, below one another, of different formats: V beside Q and K in a Q4_K_M file.
#pragma once
#include <sys/mman.h>

#include <algorithm>
#include <memory>
#include <mutex>

#include "tiles.h"

namespace fledge {

constexpr int kBlock = 32;  // inputs of a block

struct Format {
  int bits;    // 16: bf16; 8: codes up to 255; 6: up to 63; 4: up to 15
  int groups;  // of inputs in a block, with a scale each
  bool minima;
  constexpr int head_bytes() const { return groups * kPanel * 2 * (minima ? 2 : 1); }
  constexpr int block_bytes() const { return head_bytes() + kBlock * kPanel * (bits == 6 ? 8 : bits) / 8; }
};
inline constexpr Format kFormats[] = {
    {16, 0, false},                // bf16
    {8, 1, false},                 // Q8_0, IQ4_NL, IQ4_XS
    {6, 1, false}, {6, 1, true},   // Q5_0, MXFP4; Q5_1, Q5_K
    {6, 2, false}, {6, 2, true},   // Q6_K, Q3_K; Q2_K
    {4, 1, false}, {4, 1, true},   // Q4_0; Q4_1, Q4_K
};

struct Part {
  const Format* format = nullptr;
  int zero = 0;               // the code of 0, where there are no minima
  int first = 0, panels = 0;  // in the weight
  size_t at = 0;              // in `data`
};

// Memory of many weights, in huge pages where there are any: alone, a small one would take a whole page.
struct Chunk {
  char* data = nullptr;  // zero at first; the system provides what is written
  size_t bytes, used = 0;
  explicit Chunk(size_t size) : bytes(size + kHuge) {
    mapped_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped_ == MAP_FAILED) return;
    madvise(mapped_, bytes, MADV_HUGEPAGE);
    data = static_cast<char*>(mapped_);
    used = (kHuge - reinterpret_cast<uintptr_t>(data) % kHuge) % kHuge;
  }
  ~Chunk() {
    if (data) munmap(mapped_, bytes);
  }
  Chunk(const Chunk&) = delete;

 private:
  static constexpr size_t kHuge = size_t(2) << 20;
  void* mapped_;
};

struct Weight {
  static constexpr int kMostParts = 4;
  std::shared_ptr<Chunk> chunk;  // with `data`
  char* data = nullptr;
  int outputs = 0, inputs = 0, parts = 0;  // N (unpadded), K (a multiple of 32)
  size_t bytes = 0;
  Part part[kMostParts];

  int panels() const { return (outputs + kPanel - 1) / kPanel; }
  bool coded() const { return part[0].format->bits != 16; }
  const Part& part_of(int p) const {
    int i = 0;
    while (i + 1 < parts && p >= part[i + 1].first) ++i;
    return part[i];
  }
  long panel_bytes(const Part& of) const { return static_cast<long>(inputs / kBlock) * of.format->block_bytes(); }
  // Where panel p begins; p may be the number of panels.
  char* at(int p) const {
    const Part& of = part_of(p);
    return data + of.at + static_cast<size_t>(p - of.first) * panel_bytes(of);
  }
  const bf16* bf16_panel(int p) const { return reinterpret_cast<const bf16*>(at(p)); }
};

// Memory, zero, for a weight whose parts have sizes and formats. Null data: there is none.
inline void allocate(Weight& w) {
  constexpr size_t kLeast = size_t(64) << 20, kAlignment = 4096;
  static std::mutex mutex;
  static std::weak_ptr<Chunk> last;
  w.bytes = 0;
  int first = 0;
  for (Part* of = w.part; of < w.part + w.parts; ++of) {
    of->first = first;
    of->at = w.bytes;
    first += of->panels;
    w.bytes += of->panels * w.panel_bytes(*of);
  }
  size_t bytes = (w.bytes + kAlignment - 1) / kAlignment * kAlignment;
  std::lock_guard<std::mutex> lock(mutex);
  w.chunk = last.lock();
  if (!w.chunk || w.chunk->bytes - w.chunk->used < bytes) {
    w.chunk = std::make_shared<Chunk>(std::max(bytes, kLeast));
    if (!w.chunk->data) return;
    last = w.chunk;
  }
  w.data = w.chunk->data + w.chunk->used;
  w.chunk->used += bytes;
}

// Packs `rows` rows from row `first` on, a multiple of 32, within one part.
inline void pack_rows(Weight& w, int first, int rows, const bf16* from) {
  for (int r = 0; r < rows; ++r) {
    int n = (first + r) % kPanel;
    bf16* panel = reinterpret_cast<bf16*>(w.at((first + r) / kPanel));
    for (int k = 0; k < w.inputs; k += 2)
      std::memcpy(panel + k / kBlock * kBlock * kPanel + block_offset(k % kBlock / 2, n / 16) + n % 16 * 2,
                  from + static_cast<size_t>(r) * w.inputs + k, 2 * sizeof(bf16));
  }
}
// The same with codes: values [rows, inputs], scale and, if there are any, minimum [rows, inputs / 32 * groups] in f16.
inline void pack_rows(Weight& w, int first, int rows, const uint8_t* values, const uint16_t* scale,
                      const uint16_t* minimum) {
  const Format& f = *w.part_of(first / kPanel).format;
  uint32_t flip = f.bits == 8 && kSignedCodes ? 0x80808080 : 0;
  for (int r = 0; r < rows; ++r) {
    int n = (first + r) % kPanel;
    char* block = w.at((first + r) / kPanel);
    for (int b = 0; b < w.inputs / kBlock; ++b, block += f.block_bytes()) {
      auto* halves = reinterpret_cast<uint16_t*>(block) + n;
      for (int g = 0; g < f.groups; ++g) {
        halves[g * kPanel] = *scale++;
        if (f.minima) halves[(f.groups + g) * kPanel] = *minimum++;
      }
      char* codes = block + f.head_bytes() + n * 4;
      for (int quad = 0; quad < 8; ++quad, values += 4) {
        uint32_t four, held;
        std::memcpy(&four, values, 4);
        char* to = codes + (f.bits == 4 ? quad % 4 : quad) * 128;
        std::memcpy(&held, to, 4);
        four = f.bits == 4 && quad >= 4 ? held | four << 4 : four ^ flip;
        std::memcpy(to, &four, 4);
      }
    }
  }
}

// out [inputs]: a row's numbers.
inline void unpack_row(const Weight& w, int row, float* out) {
  const Part& part = w.part_of(row / kPanel);
  const Format& f = *part.format;
  const char* block = w.at(row / kPanel);
  int n = row % kPanel;
  for (int k = 0; k < w.inputs; k += kBlock, block += f.block_bytes(), out += kBlock) {
    if (f.bits == 16) {
      for (int i = 0; i < kBlock; ++i)
        out[i] = to_float(reinterpret_cast<const bf16*>(block)[block_offset(i / 2, n / 16) + n % 16 * 2 + i % 2]);
      continue;
    }
    auto* halves = reinterpret_cast<const uint16_t*>(block) + n;
    auto* codes = reinterpret_cast<const uint8_t*>(block) + f.head_bytes() + n * 4;
    for (int i = 0; i < kBlock; ++i) {
      int g = i * f.groups / kBlock, quad = i / 4, u = codes[(f.bits == 4 ? quad % 4 : quad) * 128 + i % 4];
      if (f.bits == 4) u = quad < 4 ? u & 15 : u >> 4;
      if (f.bits == 8 && kSignedCodes) u ^= 0x80;
      out[i] = half_to_float(halves[g * kPanel]) * static_cast<float>(u - part.zero);
      if (f.minima) out[i] -= half_to_float(halves[(f.groups + g) * kPanel]);
    }
  }
}

}  // namespace fledge
