// One transformer layer over a batch of rows, shared by the target's decoder and the draft head.
#pragma once
#include <algorithm>
#include <functional>

#include "attention.h"

namespace fledge {

struct Shape {
  int hidden, intermediate, heads, kv_heads, head_dim;
  float eps;
  int gelu;  // the MLP's activation: GELU instead of SiLU
};

struct Layer {  // weights; a null pointer: it has none of these
  const float *input_norm, *post_norm, *qkv_bias, *q_norm, *k_norm;
  const float *attention_out_norm, *mlp_out_norm;  // of what is added to the residual
  const Weight *qkv, *o, *gate_up, *down;
  const float *cos, *sin;  // RoPE, [positions, head_dim / 2]
  int windowed;            // it has a sliding window
};

struct Workspace {  // one forward's intermediate rows; forwards are serialised
  Buffer<float> residual, product, qkv, partial, maxima, sums;
  Buffer<bf16> normed, query, attended, activated;
  std::vector<AttentionScratch> scratch;
  std::vector<Buffer<bf16>> own;  // per thread: see `norm_rows`
  AttentionPlan plans[2];  // of layers that see all, and of windowed ones

  void ensure(const Shape& s, int rows, int inputs, int max_splits, int threads) {
    size_t padded = (static_cast<size_t>(rows) + 31) / 32 * 32;
    size_t heads = static_cast<size_t>(s.heads) * s.head_dim;
    residual.ensure(padded * s.hidden);
    product.ensure(padded * s.hidden);
    qkv.ensure(padded * (heads + 2 * static_cast<size_t>(s.kv_heads) * s.head_dim + kPanel));
    if (max_splits > 1) {
      size_t queries = static_cast<size_t>(rows) * s.heads * max_splits;
      partial.ensure(queries * s.head_dim);
      maxima.ensure(queries);
      sums.ensure(queries);
    }
    normed.ensure(padded * inputs);
    query.ensure(padded * heads + 31 * s.head_dim);  // products take whole tiles
    attended.ensure(padded * heads);
    activated.ensure(padded * s.intermediate);
    if (static_cast<int>(scratch.size()) < threads) {
      scratch.resize(threads);
      own.resize(threads);
    }
    for (auto& rows_of : own) rows_of.ensure(static_cast<size_t>(32) * s.hidden);
    RoundedRows::running().ensure(threads, rows, std::max({inputs, s.intermediate, static_cast<int>(heads)}));
  }
};

inline void rms_norm_head(float* x, const float* weight, int width, float eps) {
  rms_normed(x, weight, width, eps, [&](int i, Floats v) { store(x + i, v); });
}

// RoPE in the "rotate half" convention, rounded to bf16.
inline void rotate(const float* x, const float* cos, const float* sin, int head_dim, bf16* out) {
  int half = head_dim / 2;
  for (int i = 0; i < half; i += 16) {
    Floats a = load(x + i), b = load(x + half + i), c = load(cos + i), s = load(sin + i);
    store_bf16(out + i, fmsub(a, c, b * s));
    store_bf16(out + half + i, fmadd(b, c, a * s));
  }
}

// For one row and KV head, after the qkv product: adds the biases, normalises and rotates queries and key, and writes
// key and value into the pool.
inline void finish_qkv(const Shape& s, const Layer& w, Workspace& ws, const Batch& b, const KvShape& kv_shape,
                       bf16* kv, int layer, int row, int kv_head) {
  int hd = s.head_dim, group = s.heads / s.kv_heads, width = (s.heads + 2 * s.kv_heads) * hd;
  const RowView& view = ws.plans[w.windowed].rows[row];
  size_t angles = static_cast<size_t>(b.positions[row]) * (hd / 2);
  auto turn = [&](const float* x, bf16* out) {
    if (w.cos) rotate(x, w.cos + angles, w.sin + angles, hd, out);
    else for (int d = 0; d < hd; d += 16) store_bf16(out + d, load(x + d));
  };
  float* qkv = ws.qkv.data + static_cast<size_t>(row) * width;
  auto add_bias = [&](int column) {
    if (w.qkv_bias)
      for (int d = 0; d < hd; d += 16)
        store(qkv + column + d, load(qkv + column + d) + load(w.qkv_bias + column + d));
  };
  alignas(64) bf16 key[256], value[256];
  bf16* queries = ws.query.data + (static_cast<size_t>(kv_head) * b.rows + row) * group * hd;
  for (int g = 0; g < group; ++g) {
    int column = (kv_head * group + g) * hd;
    add_bias(column);
    if (w.q_norm) rms_norm_head(qkv + column, w.q_norm, hd, s.eps);
    turn(qkv + column, queries + g * hd);
  }
  int key_column = (s.heads + kv_head) * hd, value_column = (s.heads + s.kv_heads + kv_head) * hd;
  add_bias(key_column);
  if (w.k_norm) rms_norm_head(qkv + key_column, w.k_norm, hd, s.eps);
  turn(qkv + key_column, key);
  add_bias(value_column);
  for (int d = 0; d < hd; d += 16) store_bf16(value + d, load(qkv + value_column + d));
  bf16* page = kv + kv_shape.page(layer, b.page_of(view.request, view.index), kv_head);
  write_key(page, view.index % kPage, key, hd);
  write_value(page + kv_shape.half(), view.index % kPage, value, hd);
}

// The residual's rows, normed, for the product that follows. Inside Team::run. Each thread norms a few rows for itself:
// that takes less time than a barrier.
inline const bf16* norm_rows(Team& t, int id, const Shape& s, Workspace& ws, const float* weight, int rows) {
  constexpr int kFew = 12;
  auto norm = [&](int row, bf16* out) {
    rms_norm(ws.residual.data + static_cast<size_t>(row) * s.hidden, weight, out + static_cast<size_t>(row) * s.hidden,
             s.hidden, s.eps);
  };
  if (rows <= kFew) {
    for (int row = 0; row < rows; ++row) norm(row, ws.own[id].data);
    return ws.own[id].data;
  }
  t.for_each(id, rows, [&](int row) { norm(row, ws.normed.data); });
  return ws.normed.data;
}

// normed [rows, inputs] -> attention -> attended; keys and values go into the pool. Inside Team::run.
inline void attention_block(Team& t, int id, const Shape& s, const Layer& w, Workspace& ws, const Batch& b,
                            const KvShape& kv_shape, bf16* kv, int layer, const bf16* normed, int inputs) {
  int hd = s.head_dim, width = (s.heads + 2 * s.kv_heads) * hd;
  gemm(t, id, normed, inputs, b.rows, *w.qkv,
       [&](int row, int p, const float* c) { store_panel(ws.qkv.data, width, row, p, c); });
  // Head by head: neighbouring rows lie in the same cache lines of a page, so two threads had better not write them
  // at once.
  t.for_each(id, b.rows * s.kv_heads, [&](int item) {
    finish_qkv(s, w, ws, b, kv_shape, kv, layer, item % b.rows, item / b.rows);
  });
  AttentionCall call{kv_shape, kv, layer, s.heads, b.rows, ws.query.data, ws.attended.data, ws.partial.data,
                     ws.maxima.data, ws.sums.data, 1.0f / std::sqrt(static_cast<float>(hd))};
  int merged = (b.rows * call.group() + kMergedAtOnce - 1) / kMergedAtOnce;
  const AttentionPlan& plan = ws.plans[w.windowed];
  int units = static_cast<int>(plan.units.size());  // head by head: each unit prefetches the pages of the next ones
  t.for_each(id, units * s.kv_heads, [&](int item) {
    attend(call, plan, b, plan.units[item % units], item / units, ws.scratch[id]);
  });
  if (plan.max_splits > 1)
    t.for_each(id, merged * s.kv_heads, [&](int item) {
      merge_splits(call, plan, item / merged, item % merged, ws.scratch[id]);
    });
}

// Whether only some of a forward's rows are wanted: `count` of them, in ascending order. Null: all are.
inline bool wants_some(const int* wanted, int count, int rows) {
  const int* end = wanted + count;
  return wanted && count < rows && std::adjacent_find(wanted, end, std::greater_equal<int>()) == end;
}

// After the last layer's attention, only rows whose results are wanted go on: moves them to the front. Inside
// Team::run.
inline int keep_rows(Team& t, int id, const Shape& s, Workspace& ws, const int* wanted, int count) {
  int width = s.heads * s.head_dim;
  t.for_each(id, 1, [&](int) {
    for (int m = 0; m < count; ++m) {
      size_t to = m, from = wanted[m];
      std::memmove(ws.residual.data + to * s.hidden, ws.residual.data + from * s.hidden, s.hidden * sizeof(float));
      std::memmove(ws.attended.data + to * width, ws.attended.data + from * width, width * sizeof(bf16));
    }
  });
  return count;
}

// residual += input [rows, inputs] times a weight, normed before it is added if there is a norm. Inside Team::run.
inline void add_product(Team& t, int id, const Shape& s, Workspace& ws, const bf16* input, int inputs, int rows,
                        const Weight& weight, const float* norm) {
  gemm(t, id, input, inputs, rows, weight, [&](int row, int p, const float* c) {
    size_t at = static_cast<size_t>(row) * s.hidden + p * kPanel;
    if (norm) {
      std::memcpy(ws.product.data + at, c, kPanel * sizeof(float));
      return;
    }
    float* out = ws.residual.data + at;
    for (int i = 0; i < kPanel; i += 16) store(out + i, load(out + i) + load(c + i));
  });
  if (norm)
    t.for_each(id, rows, [&](int row) {
      float* out = ws.residual.data + static_cast<size_t>(row) * s.hidden;
      rms_normed(ws.product.data + static_cast<size_t>(row) * s.hidden, norm, s.hidden, s.eps,
                 [&](int i, Floats v) { store(out + i, load(out + i) + v); });
    });
}

// residual += o(attended). Inside Team::run.
inline void output_block(Team& t, int id, const Shape& s, const Layer& w, Workspace& ws, int rows) {
  add_product(t, id, s, ws, ws.attended.data, s.heads * s.head_dim, rows, *w.o, w.attention_out_norm);
}

// residual += down(activation(gate) * up), of the normed residual. Inside Team::run.
inline void mlp_block(Team& t, int id, const Shape& s, const Layer& w, Workspace& ws, int rows) {
  const bf16* normed = norm_rows(t, id, s, ws, w.post_norm, rows);
  gemm(t, id, normed, s.hidden, rows, *w.gate_up, [&](int row, int p, const float* c) {
    Floats gate = load(c);
    store_bf16(ws.activated.data + static_cast<size_t>(row) * s.intermediate + p * 16,
               (s.gelu ? gelu(gate) : silu(gate)) * load(c + 16));
  });
  add_product(t, id, s, ws, ws.activated.data, s.intermediate, rows, *w.down, w.mlp_out_norm);
}

}  // namespace fledge
