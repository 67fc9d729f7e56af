// Matrix products with prepacked weights, in bf16 or in 8 bits (int8.h).
//
// A weight [N, K] is cut into panels of 32 outputs; a panel is a stream of K/32 blocks, 32 k by 32 outputs, of 2 KB
// each. A block consists of 32 lines of 64 bytes: a line holds two neighbours of k, a pair, for 16 outputs, as the
// dot product instructions take them. The order of a block's lines suits the instructions (`block_offset`):
//
//     vectors    | k 0,1: outputs 0-15 | k 0,1: outputs 16-31 | k 2,3: outputs 0-15 | ...      line after line, as read
//     AMX        | k 0,1 .. 30,31: outputs 0-15 | k 0,1 .. 30,31: outputs 16-31 |              two tiles of 16 lines
//
// So a forward reads every weight once, front to back. Threads share out the panels of a product.
//
// Each output is a single accumulation over k in one fixed order, whatever the number of rows: a row's result never
// depends on the rows beside it.
#pragma once
#include <sys/mman.h>

#include "int8.h"
#include "threads.h"
#include "tiles.h"

namespace fledge {

constexpr int kRowBlock = 256;  // rows whose activations stay in the L2 cache while panels stream by

struct Packed {  // a weight in panels
  bf16* data = nullptr;
  uint8_t* int8 = nullptr;  // instead of data
  float* scale = nullptr;   // [panels * 32] of int8
  int outputs = 0, inputs = 0;  // N (unpadded), K (multiple of 32)
  int panels() const { return (outputs + kPanel - 1) / kPanel; }
  size_t elements() const { return static_cast<size_t>(panels()) * kPanel * inputs; }
  const bf16* panel(int p) const { return data + static_cast<size_t>(p) * kPanel * inputs; }
  const uint8_t* int8_panel(int p) const { return int8 + static_cast<size_t>(p) * kPanel * inputs; }
  long panel_bytes() const { return static_cast<long>(kPanel) * inputs * (int8 ? 1 : sizeof(bf16)); }
  const char* at(int p) const {
    return int8 ? reinterpret_cast<const char*>(int8_panel(p)) : reinterpret_cast<const char*>(panel(p));
  }
};

// In huge pages where there are any.
inline void* allocate_weights(size_t bytes) {
  size_t huge = size_t(2) << 20;
  bytes = (bytes + huge - 1) / huge * huge;
  void* data = std::aligned_alloc(huge, bytes);
  if (data) madvise(data, bytes, MADV_HUGEPAGE);
  return data;
}

// Which row of the weight is output n of a half of panel p. interleaved: the weight is [2 * I, K] with the gates' rows
// first, and panel p holds gates 16p .. 16p+15 in its left half, ups 16p .. 16p+15 in its right one.
inline int source_row(int outputs, bool interleaved, int p, int half, int n) {
  if (interleaved) return half ? outputs / 2 + p * 16 + n : p * 16 + n;
  return p * kPanel + half * 16 + n;
}

inline Packed pack(const bf16* weight, int outputs, int inputs, bool interleaved) {
  Packed w;
  w.outputs = outputs;
  w.inputs = inputs;
  w.data = static_cast<bf16*>(allocate_weights(w.elements() * sizeof(bf16)));
  if (!w.data) return w;
  for (int p = 0; p < w.panels(); ++p)
    for (int k0 = 0; k0 < inputs; k0 += 32)
      for (int half = 0; half < 2; ++half)
        for (int pair = 0; pair < 16; ++pair) {
          bf16* out = w.data + (static_cast<size_t>(p) * inputs + k0) * kPanel + block_offset(pair, half);
          for (int n = 0; n < 16; ++n) {
            int row = source_row(outputs, interleaved, p, half, n);
            const bf16* source = weight + static_cast<size_t>(row) * inputs + k0 + pair * 2;
            *out++ = row < outputs ? source[0] : 0;
            *out++ = row < outputs ? source[1] : 0;
          }
        }
  return w;
}

// Calls rounded(output, values, scale) for each output, in the order of the panels, with its `inputs` 8-bit values.
template <class Rounded>
inline Packed pack_int8(const bf16* weight, int outputs, int inputs, bool interleaved, Rounded&& rounded) {
  Packed w;
  w.outputs = outputs;
  w.inputs = inputs;
  w.int8 = static_cast<uint8_t*>(allocate_weights(w.elements()));
  w.scale = static_cast<float*>(std::calloc(static_cast<size_t>(w.panels()) * kPanel, sizeof(float)));
  if (!w.int8 || !w.scale) {
    std::free(w.int8);
    std::free(w.scale);
    w.int8 = nullptr;
    w.scale = nullptr;
    return w;
  }
  std::memset(w.int8, 128, w.elements());
  std::vector<uint8_t> values(inputs);
  for (int p = 0; p < w.panels(); ++p)
    for (int half = 0; half < 2; ++half)
      for (int n = 0; n < 16; ++n) {
        int row = source_row(outputs, interleaved, p, half, n);
        if (row >= outputs) continue;
        float scale = quantise_weights(weight + static_cast<size_t>(row) * inputs, inputs, values.data());
        w.scale[p * kPanel + half * 16 + n] = scale;
        uint8_t* out = w.int8 + static_cast<size_t>(p) * kPanel * inputs + half * 64 + n * 4;
        for (int k = 0; k < inputs; k += 4) std::memcpy(out + static_cast<size_t>(k) * kPanel, &values[k], 4);
        rounded(row, values.data(), scale);
      }
  return w;
}
inline Packed pack_int8(const bf16* weight, int outputs, int inputs, bool interleaved) {
  return pack_int8(weight, outputs, inputs, interleaved, [](int, const uint8_t*, float) {});
}

// The 8-bit activations of the running product. There is only one: forwards are serialised (`call_mutex`).
inline Int8Rows& int8_rows() {
  static Int8Rows rows;
  return rows;
}

// The weights that a thread reads in the running forward.
inline WeightStream& weight_stream(int id) {
  static WeightStream streams[Team::kMaxThreads];
  return streams[id];
}
// Inside Team::run, before the first product: `weights` are those of the forward, in the order of its products.
inline void plan_prefetch(const Team& t, int id, int rows, const std::vector<const Packed*>& weights) {
  WeightStream& stream = weight_stream(id);
  long bytes = 0;
  for (const Packed* w : weights) bytes += w->panels() * w->panel_bytes();
  stream.clear(prefetch_distance(rows), kPassing && bytes > l3_bytes());
  for (const Packed* w : weights) {
    int first = t.share_begin(id, w->panels()), stop = t.share_begin(id + 1, w->panels());
    stream.add(w->at(first), (stop - first) * w->panel_bytes());
  }
  stream.start();
}

// One product's part of a thread's prefetching.
class ProductPrefetch {
 public:
  ProductPrefetch(const Team& t, int id, const Packed& w)
      : stream_(weight_stream(id)), w_(w), planned_(stream_.begin_product(w.at(t.share_begin(id, w.panels())))) {}
  ~ProductPrefetch() {
    if (planned_) stream_.end_product();
  }
  // What to prefetch while panel p is multiplied with the rows from `row` on. Only the first rows of a block fetch
  // weights: the others find the panel in the cache. A later block reads all panels again, which the stream knows
  // nothing of.
  Prefetch panel(int p, int row) const {
    if (row % kRowBlock) return {};
    if (row == 0 && planned_) return stream_.take(w_.at(p), w_.panel_bytes());
    return {w_.at(p) + stream_.distance(), nullptr, nullptr, w_.panel_bytes() / kPrefetchUnit, stream_.passing()};
  }

 private:
  WeightStream& stream_;
  const Packed& w_;
  bool planned_;
};

// c [rows, 32] = rows `first`, first + 1, ... of `x`, at most 32, times panel p of 8-bit weights.
inline void multiply_int8(const Int8Rows& x, int first, int rows, const Packed& w, int p, float* c,
                          Prefetch prefetch) {
  const float* scale = w.scale + p * kPanel;
  if (!multiply_int8_tiles(x, first, rows, w.int8_panel(p), scale, w.inputs, c, prefetch))
    multiply_panel(x, first, rows, w.int8_panel(p), scale, w.inputs, c, prefetch);
}

// `gemm` with 8-bit weights; int8_rows() has room for min(rows, kRowBlock) rows of inputs.
template <class Finish>
void gemm_int8(Team& t, int id, const bf16* a, int stride, int rows, const Packed& w, Finish&& finish) {
  Int8Rows& x = int8_rows();
  int groups = groups_of(w.inputs);
  ProductPrefetch product(t, id, w);
  for (int base = 0; base < rows; base += kRowBlock) {
    int block = rows - base < kRowBlock ? rows - base : kRowBlock;
    t.for_each(id, block, [&](int r) {
      const bf16* row = a + static_cast<size_t>(base + r) * stride;
      size_t group = static_cast<size_t>(r) * groups;
      quantise_row([&](int i) { return load_bf16(row + i); }, w.inputs,
                   x.values.data + static_cast<size_t>(r) * w.inputs, x.scale.data + group, x.base.data + group);
    });
    int at_once = rows_at_once(block, 32);
    t.for_each(id, w.panels(), [&](int p) {
      alignas(64) float c[32 * kPanel];
      for (int r = 0; r < block; r += at_once) {
        int here = block - r < at_once ? block - r : at_once;
        multiply_int8(x, r, here, w, p, c, product.panel(p, base + r));
        for (int i = 0; i < here; ++i) finish(base + r + i, p, c + i * kPanel);
      }
    });
  }
}

// For `finish`: stores a panel's values in out [.., width], without the last panel's padding.
inline void store_panel(float* out, int width, int row, int p, const float* values) {
  int count = width - p * kPanel < kPanel ? width - p * kPanel : kPanel;
  std::memcpy(out + static_cast<size_t>(row) * width + p * kPanel, values, count * sizeof(float));
}

// Inside Team::run, on every thread of the team: the product of `a` [rows rounded up to 32, stride] with a weight.
// Calls finish(row, panel, values[32]) for every row and panel, on some thread.
template <class Finish>
void gemm(Team& t, int id, const bf16* a, int stride, int rows, const Packed& w, Finish&& finish) {
  if (w.int8) return gemm_int8(t, id, a, stride, rows, w, finish);
  ProductPrefetch product(t, id, w);
  for (int base = 0; base < rows; base += kRowBlock) {
    int block = rows - base < kRowBlock ? rows - base : kRowBlock;
    int at_once = rows_at_once(block);
    t.for_each(id, w.panels(), [&](int p) {
      alignas(64) float c[kMostRowsAtOnce * kPanel];
      for (int r = 0; r < block; r += at_once) {
        const bf16* rows_in = a + static_cast<size_t>(base + r) * stride;
        int here = block - r < at_once ? block - r : at_once;
        Prefetch prefetch = product.panel(p, base + r);
        multiply_panel(rows_in, stride, here, w.panel(p), w.inputs, c, kPanel, prefetch);
        for (int i = 0; i < here; ++i) finish(base + r + i, p, c + i * kPanel);
      }
    });
  }
}

}  // namespace fledge
