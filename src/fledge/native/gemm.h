// Matrix products with packed weights, in bf16 or in codes of 4 to 8 bits (weight.h, codes.h).
//
// Each output is a single accumulation over k in one fixed order, whatever the number of rows: a row's result never
// depends on the rows beside it.
#pragma once
#include "codes.h"
#include "threads.h"

namespace fledge {

constexpr int kRowBlock = 256;  // rows whose activations stay in the L2 cache while panels stream by

// The weights that a thread reads in the running forward.
inline WeightStream& weight_stream(int id) {
  static WeightStream streams[Team::kMaxThreads];
  return streams[id];
}
// Inside Team::run, before the first product: `weights` are those of the forward, in the order of its products.
inline void plan_prefetch(const Team& t, int id, int rows, const std::vector<const Weight*>& weights) {
  WeightStream& stream = weight_stream(id);
  long bytes = 0;
  for (const Weight* w : weights) bytes += static_cast<long>(w->bytes);
  stream.clear(prefetch_distance(rows), kPassing && bytes > l3_bytes());
  for (const Weight* w : weights) {
    const char* first = w->at(t.share_begin(id, w->panels()));
    stream.add(first, w->at(t.share_begin(id + 1, w->panels())) - first);
  }
  stream.start();
}

// One product's part of a thread's prefetching.
class ProductPrefetch {
 public:
  ProductPrefetch(const Team& t, int id, const Weight& w)
      : stream_(weight_stream(id)), w_(w), planned_(stream_.begin_product(w.at(t.share_begin(id, w.panels())))) {}
  ~ProductPrefetch() {
    if (planned_) stream_.end_product();
  }
  // What to prefetch while panel p is multiplied with the rows from `row` on. Only the first rows of a block fetch
  // weights: the others find the panel in the cache. A later block reads all panels again, which the stream knows
  // nothing of.
  Prefetch panel(int p, int row) const {
    if (row % kRowBlock) return {};
    const char* at = w_.at(p);
    long bytes = w_.panel_bytes(w_.part_of(p));
    if (row == 0 && planned_) return stream_.take(at, bytes);
    return {at + stream_.distance(), nullptr, nullptr, bytes, stream_.passing()};
  }

 private:
  WeightStream& stream_;
  const Weight& w_;
  bool planned_;
};

// Activations of the running products in 8 bits; forwards are serialised. A few rows each thread rounds for itself, which
// takes less time than a barrier.
struct RoundedRows {
  Rows8 shared;
  std::vector<Rows8> own;
  static constexpr int kFew = 12;
  static RoundedRows& running() {
    static RoundedRows rows;
    return rows;
  }
  // Before the forward, for products of up to `rows` rows and `inputs` inputs.
  void ensure(int threads, int rows, int inputs) {
    if (static_cast<int>(own.size()) < threads) own.resize(threads);
    for (auto& few : own) few.ensure(kFew, inputs);
    shared.ensure(std::min(rows, kRowBlock), inputs);
  }
  // Inside Team::run: `rows` rows of a.
  const Rows8& round(Team& t, int id, const bf16* a, int stride, int rows, int inputs) {
    auto round = [&](const Rows8& to, int r) {
      const bf16* row = a + static_cast<size_t>(r) * stride;
      round_row([&](int i) { return load_bf16(row + i); }, inputs, to, r);
    };
    if (rows > kFew) {
      t.for_each(id, rows, [&](int r) { round(shared, r); });
      return shared;
    }
    for (int r = 0; r < rows; ++r) round(own[id], r);
    return own[id];
  }
};

// `gemm` with codes.
template <class Finish>
void gemm_codes(Team& t, int id, const bf16* a, int stride, int rows, const Weight& w, Finish&& finish) {
  ProductPrefetch product(t, id, w);
  for (int base = 0; base < rows; base += kRowBlock) {
    int block = std::min(rows - base, kRowBlock), at_once = rows_at_once(block, 32);
    const Rows8& x =
        RoundedRows::running().round(t, id, a + static_cast<size_t>(base) * stride, stride, block, w.inputs);
    t.for_each(id, w.panels(), [&](int p) {
      alignas(64) float c[32 * kPanel];
      for (int r = 0; r < block; r += at_once) {
        int here = std::min(block - r, at_once);
        multiply_codes(x, r, here, w, p, c, product.panel(p, base + r));
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
void gemm(Team& t, int id, const bf16* a, int stride, int rows, const Weight& w, Finish&& finish) {
  if (w.coded()) return gemm_codes(t, id, a, stride, rows, w, finish);
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
        multiply_panel(rows_in, stride, here, w.bf16_panel(p), w.inputs, c, kPanel, prefetch);
        for (int i = 0; i < here; ++i) finish(base + r + i, p, c + i * kPanel);
      }
    });
  }
}

}  // namespace fledge
