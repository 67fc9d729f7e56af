// Verify, accept and extend, extend alone, and a plain round: they equal engine/round.py's torch code, bit for bit.
#include <algorithm>
#include <chrono>
#include <numeric>

#include "round.h"

using namespace fledge;

namespace {

struct Scratch {  // of the thread that runs rounds
  HeadRows head;
  std::vector<int32_t> verify_positions, offset, wanted, tokens;
  std::vector<int64_t> source, from, to, last;
  std::vector<int64_t> verify_keys, after, tossed, chosen, answers, emits, emitted;
  std::vector<float> temperature;
  std::vector<bf16> features;
};
thread_local Scratch s;

// The target over the rows of all trees: s.answers [B, N], what nodes choose, -1 where none was verified; s.features.
void run_target(const RoundModels& m, const CarriedState& c, const Drawing& d, const Drafted& t, bool features = true) {
  int64_t rows = t.rows, all = c.requests * t.nodes;
  s.chosen.resize(rows);
  s.features.resize(features ? rows * 3 * m.target->shape.hidden : 0);
  s.verify_positions.resize(rows);
  for (int64_t r = 0; r < rows; ++r) s.verify_positions[r] = std::min<int32_t>(t.positions[r], m.last_position);
  s.offset.assign(c.requests, 0);
  DecoderOutputs out{};
  out.count = rows;
  out.chosen = s.chosen.data();
  out.features = features ? s.features.data() : nullptr;
  if (d.filters) {
    s.temperature.resize(rows);
    s.verify_keys.resize(rows);
    s.after.resize(rows);
    s.tossed.resize(rows);
    for (int64_t r = 0; r < rows; ++r) {
      int64_t b = t.picked[r] / t.nodes;
      s.temperature[r] = d.filters[b * 4];
      s.verify_keys[r] = d.keys[b];
      s.after[r] = t.positions[r] + 1;
    }
    fledge_coins(s.verify_keys.data(), s.after.data(), s.tossed.data(), rows);
    out.temperature = s.temperature.data();
    out.coins = s.tossed.data();
  }
  int64_t sizes[3] = {rows, c.requests, c.pages};
  const int* tensors[6] = {t.tokens, s.verify_positions.data(), t.row_start, c.length, s.offset.data(), c.page_table};
  fledge_decoder_forward(m.target, sizes, tensors, reinterpret_cast<const uint64_t*>(t.masks), m.kv, m.pages, &out);
  s.answers.assign(all, -1);
  for (int64_t r = 0; r < rows; ++r) s.answers[t.picked[r]] = s.chosen[r];
}

}  // namespace

extern "C" {

// One token per request from the target alone, where none wants logits; see `plain_round` in round.py. `emitted` [B, 2]
// are ones and tokens. Null `recent_tokens` [B, kept]: nothing is kept for the head. Returns the target's seconds.
double fledge_plain_round(const RoundModels* m, const CarriedState* c, const Drawing* draws, int64_t* recent_tokens,
                          char* recent_features, int64_t kept, int64_t* emitted) {
  auto begun = std::chrono::steady_clock::now();
  int64_t b_count = c->requests, row_bytes = 3 * m->target->shape.hidden * sizeof(bf16);
  s.wanted.resize(b_count + 1);
  std::iota(s.wanted.begin(), s.wanted.end(), 0);
  s.source.assign(s.wanted.begin(), s.wanted.end());
  s.tokens.assign(c->bonus, c->bonus + b_count);
  Drafted roots{};
  roots.picked = s.source.data();
  roots.row_start = s.wanted.data();
  roots.tokens = s.tokens.data();
  roots.positions = c->length;
  roots.nodes = 1;
  roots.rows = b_count;
  run_target(*m, *c, *draws, roots, recent_tokens != nullptr);
  std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begun;
  if (recent_tokens)
    fledge_keep(s.answers.data(), reinterpret_cast<const char*>(s.features.data()), nullptr, c->length, s.wanted.data(),
                recent_tokens, recent_features, b_count, kept, row_bytes);
  for (int64_t b = 0; b < b_count; ++b) {
    emitted[2 * b] = 1;
    emitted[2 * b + 1] = s.answers[b];
  }
  s.emits.assign(b_count, 1);
  fledge_advance(s.emits.data(), s.answers.data(), c->length, c->bonus, c->history, b_count, 1, c->known);
  return seconds.count();
}

// See `extend` in round.py: paths [B, width] through the verify's rows, whose `features` are given. `move`: the nodes
// may be elsewhere than they belong.
void fledge_extend(const RoundModels* m, const CarriedState* c, const Drawing* draws, const int64_t* emits,
                   const int64_t* path, const int64_t* emitted, const int64_t* first_row, const bf16* features,
                   int64_t width, int64_t move) {
  int64_t b_count = c->requests, rows = std::accumulate(emits, emits + b_count, int64_t(0));
  s.head.row_start.resize(b_count + 1);
  s.last.resize(b_count);
  s.head.positions.resize(rows);
  s.head.tokens.resize(rows);
  for (std::vector<int64_t>* of : {&s.source, &s.from, &s.to}) of->resize(rows);
  fledge_path_rows(emits, path, emitted, c->length, first_row, c->page_table, s.head.row_start.data(), s.last.data(),
                   s.head.positions.data(), s.head.tokens.data(), s.source.data(), s.from.data(), s.to.data(), b_count,
                   width, c->pages, kPage);
  if (move)
    fledge_move_kv(m->kv, m->layers, m->pages, m->kv_heads, m->head_dim, s.from.data(), s.to.data(), rows);
  s.wanted.assign(s.last.begin(), s.last.end());
  HeadOutputs out{};
  out.logit_rows = s.wanted.data();
  out.count = b_count;
  out.k = c->topk;
  out.features = features;
  out.token_ids = c->first_token_ids;
  out.log_probs = c->first_log_probs;
  out.hidden = c->hidden;
  out.feature_rows = s.source.data();
  for (int64_t b = 0; b < b_count; ++b) s.last[b] = s.head.positions[s.last[b]] + kAhead;
  s.head.toss(*draws, b_count, 1, s.last, &out);
  for (int32_t& position : s.head.positions) position = std::min<int32_t>(position, m->last_position);
  s.head.run(*m, *c, rows, 0, nullptr, out);
  fledge_advance(emits, emitted, c->length, c->bonus, c->history, b_count, width, c->known);
}

}  // extern "C"

namespace fledge {

// Verify, accept and extend, where no request wants logits; see `_finish` in round.py.
void finish(const RoundModels& m, const CarriedState& c, const Drawing& draws, const Drafted& t, Accepted* out) {
  auto now = std::chrono::steady_clock::now;
  auto begun = now();
  run_target(m, c, draws, t);
  auto verified = now();
  int64_t b_count = c.requests, width = t.width;
  s.emits.resize(b_count);
  s.emitted.resize(b_count * width);
  fledge_accept(t.token_ids, t.parents, t.depths, s.answers.data(), t.speculates, s.emits.data(), out->path,
                s.emitted.data(), b_count, t.nodes, width);
  for (int64_t b = 0; b < b_count; ++b) {
    int64_t* to = out->emitted + b * (1 + width);
    to[0] = s.emits[b];
    std::copy_n(&s.emitted[b * width], width, to + 1);
  }
  auto accepted = now();
  fledge_extend(&m, &c, &draws, s.emits.data(), out->path, s.emitted.data(), t.first, s.features.data(), width,
                t.masks != nullptr);
  out->width = width;
  out->verify = std::chrono::duration<double>(verified - begun).count();
  out->accept = std::chrono::duration<double>(accepted - verified).count();
}

}  // namespace fledge
