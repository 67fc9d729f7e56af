// The C interface: a target's decoder, a draft head, and the sampler. Called from Python through ctypes.
#include <algorithm>
#include <functional>

#include "models.h"
#include "screen.h"

using namespace fledge;

namespace {

Workspace workspace;
Buffer<bf16> gathered;      // rows of the lm_head's input
Buffer<float> logit_rows;   // the head's logits
Screening screening;

Layer to_layer(const LayerPointers& p) {
  Layer l;
  l.post_norm = p.post_norm;
  l.qkv_bias = p.qkv_bias;
  l.q_norm = p.q_norm;
  l.k_norm = p.k_norm;
  l.attention_out_norm = p.attention_out_norm;
  l.mlp_out_norm = p.mlp_out_norm;
  l.cos = p.cos;
  l.sin = p.sin;
  l.windowed = p.windowed;
  l.qkv = *p.qkv;
  l.o = *p.o;
  l.gate_up = *p.gate_up;
  l.down = *p.down;
  return l;
}

void add_products(std::vector<const Packed*>& weights, const LayerPointers& p) {
  weights.insert(weights.end(), {p.qkv, p.o, p.gate_up, p.down});
}

BatchView to_view(const int64_t* sizes, const int** tensors, const uint64_t* mask) {
  BatchView b;
  b.rows = static_cast<int>(sizes[0]);
  b.requests = static_cast<int>(sizes[1]);
  b.max_pages = static_cast<int>(sizes[2]);
  b.token_ids = tensors[0];
  b.positions = tensors[1];
  b.row_start = tensors[2];
  b.prefix_length = tensors[3];
  b.window_offset = tensors[4];
  b.page_table = tensors[5];
  b.window_mask = mask;
  return b;
}

void copy_bf16(bf16* out, const float* x, int width) {
  for (int i = 0; i < width; i += 16) store_bf16(out + i, _mm512_loadu_ps(x + i));
}

}  // namespace

extern "C" {

// Starts the threads. Returns 0, or 1 when the kernel refuses the state that AMX needs.
int fledge_start(int threads) {
  static int state = -1;
  std::lock_guard<std::mutex> lock(call_mutex());
  if (state < 0) {
    state = request_tiles() ? 0 : 1;
    if (state == 0) team().start(threads), survive_forks();
  }
  return state;
}

// int8: symmetric 8-bit weights, one scale per output. Null when there is no memory.
Packed* fledge_pack(const bf16* weight, int outputs, int inputs, int interleaved, int int8) {
  Packed w = int8 ? pack_int8(weight, outputs, inputs, interleaved != 0) : pack(weight, outputs, inputs, interleaved != 0);
  return w.data || w.int8 ? new Packed(w) : nullptr;
}
void fledge_unpack(Packed* w) {
  if (!w) return;
  std::free(w->data);
  std::free(w->int8);
  std::free(w->scale);
  delete w;
}
int64_t fledge_packed_bytes(const Packed* w) {
  int64_t scales = static_cast<int64_t>(w->panels()) * kPanel * sizeof(float);
  return w->int8 ? static_cast<int64_t>(w->elements()) + scales : static_cast<int64_t>(w->elements() * sizeof(bf16));
}
// The 8-bit copy of an lm_head that screen.h wants. Null when there is no memory.
void fledge_unpack_screen(Screen* s) {
  if (!s) return;
  std::free(s->weights.int8);
  std::free(s->weights.scale);
  std::free(s->bounds);
  delete s;
}
Screen* fledge_pack_screen(const bf16* weight, int outputs, int inputs) {
  Screen* s = new Screen(pack_screen(weight, outputs, inputs));
  if (s->weights.int8 && s->bounds) return s;
  fledge_unpack_screen(s);
  return nullptr;
}
// What screening reads of it.
int64_t fledge_screen_bytes(const Screen* s) {
  return fledge_packed_bytes(&s->weights) + static_cast<int64_t>(s->weights.panels()) * 2 * kPanel * sizeof(float);
}
// out [rows, outputs] = a [rows rounded up to 32, inputs] times a packed weight that isn't interleaved: what the forwards
// multiply with, on its own.
void fledge_multiply(const bf16* a, int rows, const Packed* w, float* out) {
  std::lock_guard<std::mutex> lock(call_mutex());
  Team& t = team();
  if (w->int8) int8_rows().ensure(rows < kRowBlock ? rows : kRowBlock, w->inputs);
  t.run([&](int id) {
    configure_tiles();
    plan_prefetch(t, id, rows, {w});
    gemm(t, id, a, w->inputs, rows, *w, [&](int row, int p, const float* c) {
      int count = w->outputs - p * kPanel < kPanel ? w->outputs - p * kPanel : kPanel;
      std::memcpy(out + static_cast<size_t>(row) * w->outputs + p * kPanel, c, count * sizeof(float));
    });
    release_tiles();
  });
}

void fledge_decoder_forward(const Decoder* d, const int64_t* sizes, const int** tensors, const uint64_t* mask, bf16* kv,
                            int64_t pages, const DecoderOutputs* outputs) {
  std::lock_guard<std::mutex> lock(call_mutex());
  Team& t = team();
  BatchView b = to_view(sizes, tensors, mask);
  const Shape& s = d->shape;
  const DecoderOutputs& out = *outputs;
  Workspace& ws = workspace;
  int splits = 1;
  for (int windowed = 0; windowed < 2; ++windowed) {
    auto is_such = [&](const LayerPointers& p) { return p.windowed == windowed; };
    if (std::none_of(d->layer, d->layer + d->layers, is_such)) continue;
    ws.plans[windowed].build(b, rows_per_unit(s.heads / s.kv_heads), windowed ? d->window : 0);
    splits = std::max(splits, ws.plans[windowed].max_splits);
  }
  ws.ensure(s, b.rows, s.hidden, splits, t.size);
  KvShape kv_shape{d->layers, static_cast<int>(pages), s.kv_heads, s.head_dim};
  int wanted = static_cast<int>(out.count);
  // Screening multiplies single rows, with room for a tile's after each.
  if (out.logits || out.chosen) gathered.ensure((static_cast<size_t>(wanted) + 63) / 32 * 32 * s.hidden);
  if (out.chosen) screening.ensure(wanted, d->screen->weights, t.size, out.temperature, out.coins, out.allowed);
  std::vector<const Packed*> weights;
  for (int l = 0; l < d->layers; ++l) add_products(weights, d->layer[l]);
  if (out.logits) weights.push_back(d->lm_head);
  if (out.chosen) weights.push_back(&d->screen->weights);
  if (!out.logits && !out.chosen) wanted = 0;
  bool narrows = !out.hidden && (wanted == 0 || wants_some(out.logit_rows, wanted, b.rows));
  for (int layer : d->feature_layers) narrows = narrows && !(out.features && layer == d->layers - 1);
  t.run([&](int id) {
    configure_tiles();
    plan_prefetch(t, id, b.rows, weights);
    t.for_each(id, b.rows, [&](int r) {
      const bf16* e = d->embedding + static_cast<size_t>(b.token_ids[r]) * s.hidden;
      float* x = ws.residual.data + static_cast<size_t>(r) * s.hidden;
      bf16 scaled[16];  // rounded, as transformers does; times 1 changes nothing
      for (int i = 0; i < s.hidden; i += 16) {
        store_bf16(scaled, _mm512_mul_ps(load_bf16(e + i), _mm512_set1_ps(d->embedding_scale)));
        _mm512_storeu_ps(x + i, load_bf16(scaled));
      }
    });
    int rows = b.rows;
    for (int l = 0; l < d->layers; ++l) {
      Layer w = to_layer(d->layer[l]);
      const bf16* normed = norm_rows(t, id, s, ws, d->layer[l].input_norm, b.rows);
      attention_block(t, id, s, w, ws, b, kv_shape, kv, l, normed, s.hidden);
      if (narrows && l == d->layers - 1) rows = keep_rows(t, id, s, ws, out.logit_rows, wanted);
      output_block(t, id, s, w, ws, rows);
      mlp_block(t, id, s, w, ws, rows);
      for (int f = 0; f < 3; ++f)
        if (out.features && d->feature_layers[f] == l)
          t.for_each(id, b.rows, [&](int r) {
            copy_bf16(out.features + (static_cast<size_t>(r) * 3 + f) * s.hidden,
                      ws.residual.data + static_cast<size_t>(r) * s.hidden, s.hidden);
          });
    }
    if (out.hidden)
      t.for_each(id, b.rows, [&](int r) {
        rms_norm(ws.residual.data + static_cast<size_t>(r) * s.hidden, d->norm,
                 out.hidden + static_cast<size_t>(r) * s.hidden, s.hidden, s.eps);
      });
    if (out.logits || out.chosen)
      t.for_each(id, wanted, [&](int m) {
        int r = out.logit_rows && !narrows ? out.logit_rows[m] : m;
        rms_norm(ws.residual.data + static_cast<size_t>(r) * s.hidden, d->norm,
                 gathered.data + static_cast<size_t>(m) * s.hidden, s.hidden, s.eps);
      });
    if (out.logits)
      gemm(t, id, gathered.data, s.hidden, wanted, *d->lm_head, [&](int m, int p, const float* c) {
        int count = d->vocabulary - p * kPanel < kPanel ? d->vocabulary - p * kPanel : kPanel;
        std::memcpy(out.logits + static_cast<size_t>(m) * d->vocabulary + p * kPanel, c, count * 4);
      });
    if (out.chosen) screening.run(t, id, gathered.data, wanted, *d->screen, *d->lm_head, out.chosen);
    release_tiles();
  });
}

void fledge_head_forward(const DraftHead* h, const int64_t* sizes, const int** tensors, const uint64_t* mask, bf16* kv,
                         int64_t pages, const HeadOutputs* outputs) {
  std::lock_guard<std::mutex> lock(call_mutex());
  Team& t = team();
  BatchView b = to_view(sizes, tensors, mask);
  const Shape& s = h->shape;
  const HeadOutputs& out = *outputs;
  Workspace& ws = workspace;
  ws.plans[0].build(b, rows_per_unit(s.heads / s.kv_heads), 0);
  int inputs = 2 * s.hidden > 3 * h->target_hidden ? 2 * s.hidden : 3 * h->target_hidden;
  ws.ensure(s, b.rows, inputs, ws.plans[0].max_splits, t.size);
  KvShape kv_shape{1, static_cast<int>(pages), s.kv_heads, s.head_dim};
  int wanted = static_cast<int>(out.count), k = static_cast<int>(out.k);
  gathered.ensure((static_cast<size_t>(wanted) + 31) / 32 * 32 * s.hidden);
  logit_rows.ensure(static_cast<size_t>(wanted) * h->draft_vocabulary);
  if (h->lm_head->int8) {
    int widest = inputs > s.intermediate ? inputs : s.intermediate;
    if (s.heads * s.head_dim > widest) widest = s.heads * s.head_dim;
    int8_rows().ensure(b.rows < kRowBlock ? b.rows : kRowBlock, widest);
  }
  static std::vector<Buffer<float>> races;
  if (out.filters && static_cast<int>(races.size()) < t.size) races.resize(t.size);
  Layer w = to_layer(h->layer);
  int fused = 3 * h->target_hidden;
  std::vector<const Packed*> weights;
  if (out.features) weights.push_back(h->fc);
  add_products(weights, h->layer);
  weights.push_back(h->lm_head);
  bool narrows = wants_some(out.logit_rows, wanted, b.rows);
  t.run([&](int id) {
    configure_tiles();
    plan_prefetch(t, id, b.rows, weights);
    if (out.features) {
      t.for_each(id, b.rows, [&](int r) {
        const bf16* f = out.features + static_cast<size_t>(out.feature_rows ? out.feature_rows[r] : r) * fused;
        bf16* x = ws.normed.data + static_cast<size_t>(r) * fused;
        if (!h->fc_norm) {
          std::memcpy(x, f, static_cast<size_t>(fused) * 2);
          return;
        }
        std::vector<float> wide(h->target_hidden);
        for (int part = 0; part < 3; ++part) {
          int at = part * h->target_hidden;
          for (int i = 0; i < h->target_hidden; i += 16) _mm512_storeu_ps(wide.data() + i, load_bf16(f + at + i));
          rms_norm(wide.data(), h->fc_norm + at, x + at, h->target_hidden, s.eps);
        }
      });
      gemm(t, id, ws.normed.data, fused, b.rows, *h->fc, [&](int row, int p, const float* c) {
        std::memcpy(ws.residual.data + static_cast<size_t>(row) * s.hidden + p * kPanel, c, kPanel * 4);
      });
    } else {
      t.for_each(id, b.rows, [&](int r) {
        const bf16* x = out.inputs + static_cast<size_t>(r) * s.hidden;
        for (int i = 0; i < s.hidden; i += 16)
          _mm512_storeu_ps(ws.residual.data + static_cast<size_t>(r) * s.hidden + i, load_bf16(x + i));
      });
    }
    t.for_each(id, b.rows, [&](int r) {
      bf16* x = ws.normed.data + static_cast<size_t>(r) * 2 * s.hidden;
      const bf16* e = h->embedding + static_cast<size_t>(b.token_ids[r]) * s.hidden;
      __m512 sum = _mm512_setzero_ps();
      for (int i = 0; i < s.hidden; i += 16) sum = _mm512_fmadd_ps(load_bf16(e + i), load_bf16(e + i), sum);
      __m512 scale = _mm512_set1_ps(1.0f / std::sqrt(_mm512_reduce_add_ps(sum) / s.hidden + s.eps));
      for (int i = 0; i < s.hidden; i += 16)
        store_bf16(x + i, _mm512_mul_ps(_mm512_mul_ps(load_bf16(e + i), scale), _mm512_loadu_ps(h->layer.input_norm + i)));
      float* residual = ws.residual.data + static_cast<size_t>(r) * s.hidden;
      rms_norm(residual, h->hidden_norm, x + s.hidden, s.hidden, s.eps);
      if (h->norm_before_residual)
        for (int i = 0; i < s.hidden; i += 16) _mm512_storeu_ps(residual + i, load_bf16(x + s.hidden + i));
    });
    attention_block(t, id, s, w, ws, b, kv_shape, kv, 0, ws.normed.data, 2 * s.hidden);
    int rows = narrows ? keep_rows(t, id, s, ws, out.logit_rows, wanted) : b.rows;
    output_block(t, id, s, w, ws, rows);
    mlp_block(t, id, s, w, ws, rows);
    t.for_each(id, wanted, [&](int m) {
      int r = out.logit_rows && !narrows ? out.logit_rows[m] : m;
      const float* x = ws.residual.data + static_cast<size_t>(r) * s.hidden;
      bf16 *carried = out.hidden + static_cast<size_t>(m) * s.hidden, *normed = gathered.data + static_cast<size_t>(m) * s.hidden;
      rms_norm(x, h->norm, normed, s.hidden, s.eps);
      if (h->norm_output) std::memcpy(carried, normed, s.hidden * sizeof(bf16));
      else copy_bf16(carried, x, s.hidden);
    });
    gemm(t, id, gathered.data, s.hidden, wanted, *h->lm_head, [&](int m, int p, const float* c) {
      int count = h->draft_vocabulary - p * kPanel < kPanel ? h->draft_vocabulary - p * kPanel : kPanel;
      std::memcpy(logit_rows.data + static_cast<size_t>(m) * h->draft_vocabulary + p * kPanel, c, count * 4);
    });
    t.for_each(id, wanted, [&](int m) {
      const float* x = logit_rows.data + static_cast<size_t>(m) * h->draft_vocabulary;
      int ids[64];
      float values[64], norm = 0;
      if (out.filters && out.filters[m * 4] > 0) {
        float* work = races[id].ensure(2 * (static_cast<size_t>(h->draft_vocabulary) + 16));
        const float* f = out.filters + m * 4;
        SampleOptions o{f[0], f[2], f[3], static_cast<int>(f[1])};
        foresee(x, h->draft_vocabulary, h->target_ids, k, o, out.coins[m], ids, values, work);
      } else {
        top_k(x, h->draft_vocabulary, k, ids, values);
        norm = log_sum_exp(x, h->draft_vocabulary, values[0]);
      }
      for (int i = 0; i < k; ++i) {
        out.token_ids[static_cast<size_t>(m) * k + i] = h->target_ids[ids[i]];
        out.log_probs[static_cast<size_t>(m) * k + i] = values[i] - norm;
      }
    });
    release_tiles();
  });
}

// Copies entries between slots; all sources are read before any write.
void fledge_move_kv(bf16* kv, int layers, int64_t pages, int kv_heads, int head_dim, const int64_t* source,
                    const int64_t* destination, int64_t count) {
  std::lock_guard<std::mutex> lock(call_mutex());
  KvShape shape{layers, static_cast<int>(pages), kv_heads, head_dim};
  std::vector<bf16> held(static_cast<size_t>(count) * 2 * head_dim);
  for (int l = 0; l < layers; ++l)
    for (int h = 0; h < kv_heads; ++h) {
      for (int64_t i = 0; i < count; ++i) {
        if (source[i] == destination[i]) continue;
        const bf16* page = kv + shape.page(l, static_cast<int>(source[i] / kPage), h);
        int entry = static_cast<int>(source[i] % kPage);
        for (int d = 0; d < head_dim; ++d) {
          held[i * 2 * head_dim + d] = page[key_offset(entry, d)];
          held[i * 2 * head_dim + head_dim + d] = page[shape.half() + value_offset(entry, d)];
        }
      }
      for (int64_t i = 0; i < count; ++i) {
        if (source[i] == destination[i]) continue;
        bf16* page = kv + shape.page(l, static_cast<int>(destination[i] / kPage), h);
        int entry = static_cast<int>(destination[i] % kPage);
        write_key(page, entry, &held[i * 2 * head_dim], head_dim);
        write_value(page + shape.half(), entry, &held[i * 2 * head_dim + head_dim], head_dim);
      }
    }
}

void fledge_sample(const float* logits, int64_t rows, int64_t vocabulary, const float* temperature, const int64_t* top_k_rows,
                   const float* top_p, const float* min_p, const int64_t* coins, int64_t* out) {
  std::lock_guard<std::mutex> lock(call_mutex());
  Team& t = team();
  static std::vector<Buffer<float>> work;
  if (static_cast<int>(work.size()) < t.size) work.resize(t.size);
  int n = static_cast<int>(vocabulary);
  t.run([&](int id) {
    float* mine = work[id].ensure(2 * (static_cast<size_t>(n) + 16));
    t.for_each(id, static_cast<int>(rows), [&](int r) {
      const float* x = logits + static_cast<size_t>(r) * n;
      if (temperature[r] <= 0) {
        Best best;
        best.offer_row(x, 0, n);
        out[r] = best.token();
      } else {
        SampleOptions o{temperature[r], top_p[r], min_p[r], static_cast<int>(top_k_rows[r])};
        out[r] = sample_row(x, n, o, coins[r], mine);
      }
    });
  });
}

}  // extern "C"
