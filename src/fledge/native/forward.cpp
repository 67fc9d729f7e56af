// A forward of the target and one of the draft head, each in one call over a batch of rows. The calls are declared in
// models.h; Python makes them through ctypes, and so do the rounds (round.h).
#include "models.h"
#include "screen.h"

using namespace fledge;

namespace {

constexpr int kChosenAtOnce = 64;  // rows whose logits are in memory together

// Memory of the running forward: forwards are serialised.
Workspace workspace;
Buffer<bf16> lm_inputs;      // [wanted rows, hidden], the lm_head's input
Buffer<bf16> low_rank;       // [wanted rows, rank], what a head's candidates are estimated from
Buffer<float> draft_logits;  // [wanted rows, draft vocabulary]
Buffer<float> some_logits;   // [kChosenAtOnce wanted rows, vocabulary], to choose tokens from
Screening screening;
std::vector<Buffer<float>> races;  // by thread: what sampling needs

void add_matrices(std::vector<const Weight*>& weights, const Layer& l) {
  weights.insert(weights.end(), {l.qkv, l.o, l.gate_up, l.down});
}

void copy_bf16(bf16* out, const float* x, int width) {
  for (int i = 0; i < width; i += 16) store_bf16(out + i, load(x + i));
}

// The head's input to fc in row r: three layers' features, each normed if the head has norms for them.
void copy_features(const DraftHead& h, const HeadOutputs& out, int r, bf16* x) {
  int width = h.target_hidden, fused = 3 * width;
  const bf16* f = out.features + static_cast<size_t>(out.feature_rows ? out.feature_rows[r] : r) * fused;
  if (!h.has(kFcNorm)) {
    std::memcpy(x, f, static_cast<size_t>(fused) * sizeof(bf16));
    return;
  }
  std::vector<float> wide(width);
  for (int at = 0; at < fused; at += width) {
    for (int i = 0; i < width; i += 16) store(wide.data() + i, load_bf16(f + at + i));
    rms_norm(wide.data(), h.vectors[kFcNorms] + at, x + at, width, h.shape.eps);
  }
}

// The input [2 * hidden] of the head's layer: the token's embedding and the hidden state `residual`, both normed.
void join_inputs(const DraftHead& h, int token, float* residual, bf16* x) {
  const Shape& s = h.shape;
  std::vector<float> embedded(s.hidden);
  unpack_row(*h.embedding, token, embedded.data());
  rms_norm(embedded.data(), h.layer.input_norm, x, s.hidden, s.eps);
  rms_norm(residual, h.vectors[kHiddenNorm], x + s.hidden, s.hidden, s.eps);
  if (h.has(kNormBeforeResidual))
    for (int i = 0; i < s.hidden; i += 16) store(residual + i, load_bf16(x + s.hidden + i));
}

// Exact logits in place of the m-th wanted row's largest estimates.
void score_candidates(const DraftHead& h, int m) {
  float* x = draft_logits.data + static_cast<size_t>(m) * h.draft_vocabulary;
  int width = h.shape.hidden, ids[kMostCandidates];
  const bf16* input = lm_inputs.data + static_cast<size_t>(m) * width;
  thread_local std::vector<float> maxima;
  thread_local std::vector<int> reach;
  int count = largest(x, h.draft_vocabulary, h.candidates, ids, maxima, reach);
  auto row = [&](int i) { return h.lm_head_rows + static_cast<size_t>(ids[i]) * width; };
  auto fetch = [&](int i) {
    auto* line = reinterpret_cast<const char*>(row(i));
    for (size_t at = 0; at < width * sizeof(bf16); at += kLine) prefetch_to_l2(line + at);
  };
  constexpr int kAheadRows = 4;
  for (int i = 0; i < std::min(kAheadRows, count); ++i) fetch(i);
  for (int i = 0; i < count; ++i) {
    if (i + kAheadRows < count) fetch(i + kAheadRows);
    Floats sum = zeros();
    for (int k = 0; k < width; k += 16) sum = fmadd(load_bf16(input + k), load_bf16(row(i) + k), sum);
    x[ids[i]] = sum_of(sum);
  }
}

// The m-th wanted row's k proposals, from its logits over the draft vocabulary.
void propose(const DraftHead& h, const HeadOutputs& out, int m, Buffer<float>& work) {
  const float* x = draft_logits.data + static_cast<size_t>(m) * h.draft_vocabulary;
  int ids[kMostNodes], k = static_cast<int>(out.k);
  float values[kMostNodes], norm = 0;
  if (out.filters && out.filters[m * 4] > 0) {
    foresee(x, h.draft_vocabulary, h.target_ids, k, SampleOptions::of(out.filters + m * 4), out.coins[m], ids, values,
            work.ensure(2 * (static_cast<size_t>(h.draft_vocabulary) + 16)));
  } else {
    top_k(x, h.draft_vocabulary, k, ids, values);
    norm = log_sum_exp(x, h.draft_vocabulary, values[0]);
  }
  for (int i = 0; i < k; ++i) {
    out.token_ids[static_cast<size_t>(m) * k + i] = h.target_ids[ids[i]];
    out.log_probs[static_cast<size_t>(m) * k + i] = values[i] - norm;
  }
}

// Whether some row chooses its token from all of its logits.
bool wants_filters(const DecoderOutputs& out) {
  if (!out.chosen || !out.filters) return false;
  for (int64_t m = 0; m < out.count; ++m)
    if (SampleOptions::of(out.filters + m * 4).filters()) return true;
  return false;
}

// Samples the token of requested row m. Overwrites disallowed logits with -inf.
int choose(const Decoder& d, const DecoderOutputs& out, int64_t m, float* x, Buffer<float>& work) {
  int panels = d.lm_head->panels();
  const uint32_t* allowed = out.allowed ? out.allowed + m * panels : nullptr;
  for (int p = 0; allowed && p < panels; ++p)
    for (int i = 0; i < kPanel && p * kPanel + i < d.vocabulary; ++i)
      if (!(allowed[p] >> i & 1)) x[p * kPanel + i] = -INFINITY;
  auto options = out.filters ? SampleOptions::of(out.filters + m * 4) : SampleOptions{};
  return choose_token(x, d.vocabulary, options, out.coins ? out.coins[m] : 0,
                      work.ensure(2 * (static_cast<size_t>(d.vocabulary) + 16)));
}

// Inside Team::run: the wanted rows' tokens from all of their logits, some rows at a time.
void choose_all(Team& t, int id, const Decoder& d, const DecoderOutputs& out) {
  int wanted = static_cast<int>(out.count), hidden = d.shape.hidden;
  auto logits = [&](int m) { return some_logits.data + static_cast<size_t>(m) * d.vocabulary; };
  for (int first = 0; first < wanted; first += kChosenAtOnce) {
    int rows = std::min(wanted - first, kChosenAtOnce);
    gemm(t, id, lm_inputs.data + static_cast<size_t>(first) * hidden, hidden, rows, *d.lm_head,
         [&](int m, int p, const float* c) { store_panel(some_logits.data, d.vocabulary, m, p, c); });
    t.for_each(id, rows, [&](int m) { out.chosen[first + m] = choose(d, out, first + m, logits(m), races[id]); });
  }
}

}  // namespace

extern "C" {

void fledge_decoder_forward(const Decoder* d, const Batch* batch, bf16* kv, int64_t pages,
                            const DecoderOutputs* outputs) {
  std::lock_guard<std::mutex> lock(call_mutex());
  Team& t = team();
  const Batch& b = *batch;
  const Shape& s = d->shape;
  const DecoderOutputs& out = *outputs;
  Workspace& ws = workspace;
  int splits = 1;
  for (int windowed = 0; windowed < 2; ++windowed) {
    auto is_such = [&](const Layer& l) { return l.windowed == windowed; };
    if (std::none_of(d->layer, d->layer + d->layers, is_such)) continue;
    ws.plans[windowed].build(b, rows_per_unit(s.heads / s.kv_heads), {windowed ? d->window : 0});
    splits = std::max(splits, ws.plans[windowed].max_splits);
  }
  ws.ensure(s, b.rows, s.hidden, splits, t.size);
  KvShape kv_shape{d->layers, static_cast<int>(pages), s.kv_heads, s.head_dim};
  int wanted = static_cast<int>(out.count);
  // Screening multiplies single rows, with room for the rest of a tile after each.
  if (out.logits || out.chosen) lm_inputs.ensure((static_cast<size_t>(wanted) + 63) / 32 * 32 * s.hidden);
  bool screens = out.chosen && d->screen && !wants_filters(out);
  if (screens) screening.ensure(wanted, *d->screen->weights, t.size, out.filters, out.coins, out.allowed);
  else if (out.chosen) some_logits.ensure(std::min<size_t>(wanted, kChosenAtOnce) * d->vocabulary);
  if (static_cast<int>(races.size()) < t.size) races.resize(t.size);
  std::vector<const Weight*> weights;
  for (int l = 0; l < d->layers; ++l) add_matrices(weights, d->layer[l]);
  if (out.logits || (out.chosen && !screens)) weights.push_back(d->lm_head);
  if (screens) weights.push_back(d->screen->weights);
  if (!out.logits && !out.chosen) wanted = 0;
  bool narrows = !out.hidden && (wanted == 0 || wants_some(out.logit_rows, wanted, b.rows));
  for (int layer : d->feature_layers) narrows = narrows && !(out.features && layer == d->layers - 1);
  auto residual = [&](int r) { return ws.residual.data + static_cast<size_t>(r) * s.hidden; };
  t.run([&](int id) {
    configure_tiles();
    plan_prefetch(t, id, b.rows, weights);
    t.for_each(id, b.rows, [&](int r) {
      float* x = residual(r);
      unpack_row(*d->embedding, b.token_ids[r], x);
      bf16 scaled[16];  // rounded, as transformers does; times 1 changes nothing
      for (int i = 0; i < s.hidden; i += 16) {
        store_bf16(scaled, load(x + i) * broadcast(d->embedding_scale));
        store(x + i, load_bf16(scaled));
      }
    });
    int rows = b.rows;
    for (int l = 0; l < d->layers; ++l) {
      const Layer& w = d->layer[l];
      const bf16* normed = norm_rows(t, id, s, ws, w.input_norm, b.rows);
      attention_block(t, id, s, w, ws, b, kv_shape, kv, l, normed, s.hidden);
      if (narrows && l == d->layers - 1) rows = keep_rows(t, id, s, ws, out.logit_rows, wanted);
      output_block(t, id, s, w, ws, rows);
      mlp_block(t, id, s, w, ws, rows);
      for (int f = 0; f < 3; ++f)
        if (out.features && d->feature_layers[f] == l)
          t.for_each(id, b.rows, [&](int r) {
            copy_bf16(out.features + (static_cast<size_t>(r) * 3 + f) * s.hidden, residual(r), s.hidden);
          });
    }
    if (out.hidden)
      t.for_each(id, b.rows, [&](int r) {
        rms_norm(residual(r), d->norm, out.hidden + static_cast<size_t>(r) * s.hidden, s.hidden, s.eps);
      });
    if (out.logits || out.chosen)
      t.for_each(id, wanted, [&](int m) {
        int r = out.logit_rows && !narrows ? out.logit_rows[m] : m;
        rms_norm(residual(r), d->norm, lm_inputs.data + static_cast<size_t>(m) * s.hidden, s.hidden, s.eps);
      });
    if (out.logits)
      gemm(t, id, lm_inputs.data, s.hidden, wanted, *d->lm_head,
           [&](int m, int p, const float* c) { store_panel(out.logits, d->vocabulary, m, p, c); });
    if (screens) screening.run(t, id, lm_inputs.data, wanted, *d->screen, *d->lm_head, out.chosen);
    else if (out.chosen) choose_all(t, id, *d, out);
    release_tiles();
  });
}

void fledge_head_forward(const DraftHead* h, const Batch* batch, bf16* kv, int64_t pages, const HeadOutputs* outputs) {
  std::lock_guard<std::mutex> lock(call_mutex());
  Team& t = team();
  const Batch& b = *batch;
  const Shape& s = h->shape;
  const HeadOutputs& out = *outputs;
  Workspace& ws = workspace;
  ws.plans[0].build(b, rows_per_unit(s.heads / s.kv_heads), {h->window, h->sinks, true});
  int fused = 3 * h->target_hidden, inputs = std::max(2 * s.hidden, fused);
  ws.ensure(s, b.rows, inputs, ws.plans[0].max_splits, t.size);
  KvShape kv_shape{1, static_cast<int>(pages), s.kv_heads, s.head_dim};
  int wanted = static_cast<int>(out.count);
  lm_inputs.ensure((static_cast<size_t>(wanted) + 31) / 32 * 32 * s.hidden);
  draft_logits.ensure(static_cast<size_t>(wanted) * h->draft_vocabulary);
  if (static_cast<int>(races.size()) < t.size) races.resize(t.size);
  std::vector<const Weight*> weights;
  if (out.features) weights.push_back(h->fc);
  add_matrices(weights, h->layer);
  if (h->candidates) {
    weights.insert(weights.end(), {h->candidate_down, h->candidate_up});
    low_rank.ensure((static_cast<size_t>(wanted) + 31) / 32 * 32 * h->candidate_down->outputs);
  } else {
    weights.push_back(h->lm_head);
  }
  bool narrows = wants_some(out.logit_rows, wanted, b.rows);
  auto residual = [&](int r) { return ws.residual.data + static_cast<size_t>(r) * s.hidden; };
  t.run([&](int id) {
    configure_tiles();
    plan_prefetch(t, id, b.rows, weights);
    if (out.features) {
      t.for_each(id, b.rows,
                 [&](int r) { copy_features(*h, out, r, ws.normed.data + static_cast<size_t>(r) * fused); });
      gemm(t, id, ws.normed.data, fused, b.rows, *h->fc,
           [&](int row, int p, const float* c) { store_panel(ws.residual.data, s.hidden, row, p, c); });
    } else {
      t.for_each(id, b.rows, [&](int r) {
        const bf16* x = out.inputs + static_cast<size_t>(r) * s.hidden;
        for (int i = 0; i < s.hidden; i += 16) store(residual(r) + i, load_bf16(x + i));
      });
    }
    t.for_each(id, b.rows, [&](int r) {
      join_inputs(*h, b.token_ids[r], residual(r), ws.normed.data + static_cast<size_t>(r) * 2 * s.hidden);
    });
    attention_block(t, id, s, h->layer, ws, b, kv_shape, kv, 0, ws.normed.data, 2 * s.hidden);
    int rows = narrows ? keep_rows(t, id, s, ws, out.logit_rows, wanted) : b.rows;
    output_block(t, id, s, h->layer, ws, rows);
    mlp_block(t, id, s, h->layer, ws, rows);
    t.for_each(id, wanted, [&](int m) {
      const float* x = residual(out.logit_rows && !narrows ? out.logit_rows[m] : m);
      size_t at = static_cast<size_t>(m) * s.hidden;
      rms_norm(x, h->vectors[kNorm], lm_inputs.data + at, s.hidden, s.eps);
      if (h->has(kNormOutput)) std::memcpy(out.hidden + at, lm_inputs.data + at, s.hidden * sizeof(bf16));
      else copy_bf16(out.hidden + at, x, s.hidden);
    });
    auto store_logits = [&](int m, int p, const float* c) {
      store_panel(draft_logits.data, h->draft_vocabulary, m, p, c);
    };
    if (h->candidates) {
      int rank = h->candidate_down->outputs;
      gemm(t, id, lm_inputs.data, s.hidden, wanted, *h->candidate_down, [&](int m, int p, const float* c) {
        copy_bf16(low_rank.data + static_cast<size_t>(m) * rank + p * kPanel, c, kPanel);
      });
      gemm(t, id, low_rank.data, rank, wanted, *h->candidate_up, store_logits);
      t.for_each(id, wanted, [&](int m) { score_candidates(*h, m); });
    } else {
      gemm(t, id, lm_inputs.data, s.hidden, wanted, *h->lm_head, store_logits);
    }
    t.for_each(id, wanted, [&](int m) { propose(*h, out, m, races[id]); });
    release_tiles();
  });
}

// out [rows, outputs] = a [rows rounded up to 32, inputs] times a packed weight that isn't interleaved.
void fledge_multiply(const bf16* a, int rows, const Weight* w, float* out) {
  std::lock_guard<std::mutex> lock(call_mutex());
  Team& t = team();
  RoundedRows::running().ensure(t.size, rows, w->inputs);
  t.run([&](int id) {
    configure_tiles();
    plan_prefetch(t, id, rows, {w});
    gemm(t, id, a, w->inputs, rows, *w,
         [&](int row, int p, const float* c) { store_panel(out, w->outputs, row, p, c); });
    release_tiles();
  });
}

}  // extern "C"
