// Verify, accept and extend, and extend alone: they equal engine/round.py's torch code, bit for bit.
#include <algorithm>
#include <chrono>
#include <numeric>

#include "round.h"

using namespace fledge;

namespace {

struct Scratch {  // of the thread that runs rounds
  HeadRows head;
  TargetRows target;
  Paths paths;
  std::vector<int32_t> wanted;
  std::vector<int64_t> after;
};
thread_local Scratch s;

}  // namespace

namespace fledge {

void TargetRows::run(const RoundModels& m, const CarriedState& c, const Drawing& d, const Drafted& t,
                     bool with_features) {
  int64_t rows = t.rows;
  chosen.resize(rows);
  features.resize(with_features ? rows * 3 * m.target->shape.hidden : 0);
  positions.resize(rows);
  for (int64_t r = 0; r < rows; ++r) positions[r] = std::min<int32_t>(t.positions[r], m.last_position);
  offset.assign(c.requests, 0);
  DecoderOutputs out{};
  out.count = rows;
  out.chosen = chosen.data();
  out.features = with_features ? features.data() : nullptr;
  if (d.filters) {
    temperature.resize(rows);
    keys.resize(rows);
    after.resize(rows);
    tossed.resize(rows);
    for (int64_t r = 0; r < rows; ++r) {
      int64_t b = t.picked[r] / t.nodes;
      temperature[r] = d.filters[b * 4];
      keys[r] = d.keys[b];
      after[r] = t.positions[r] + 1;
    }
    fledge_coins(keys.data(), after.data(), tossed.data(), rows);
    out.temperature = temperature.data();
    out.coins = tossed.data();
  }
  int64_t sizes[3] = {rows, c.requests, c.pages};
  const int* tensors[6] = {t.tokens, positions.data(), t.row_start, c.length, offset.data(), c.page_table};
  fledge_decoder_forward(m.target, sizes, tensors, reinterpret_cast<const uint64_t*>(t.masks), m.kv, m.pages, &out);
  answers.assign(c.requests * t.nodes, -1);
  for (int64_t r = 0; r < rows; ++r) answers[t.picked[r]] = chosen[r];
}

void Paths::accept(const CarriedState& c, const Drafted& t, const std::vector<int64_t>& answers, Accepted* out) {
  emits.resize(c.requests);
  emitted.resize(c.requests * t.width);
  fledge_accept(t.token_ids, t.parents, t.depths, answers.data(), t.speculates, emits.data(), out->path, emitted.data(),
                c.requests, t.nodes, t.width);
  for (int64_t b = 0; b < c.requests; ++b) {
    int64_t* to = out->emitted + b * (1 + t.width);
    to[0] = emits[b];
    std::copy_n(&emitted[b * t.width], t.width, to + 1);
  }
  out->width = t.width;
}

void Paths::lay_out(const CarriedState& c, const int64_t* emits, const int64_t* path, const int64_t* emitted,
                    const int64_t* first_row, int64_t width) {
  int64_t rows = std::accumulate(emits, emits + c.requests, int64_t(0));
  row_start.resize(c.requests + 1);
  last.resize(c.requests);
  positions.resize(rows);
  tokens.resize(rows);
  for (std::vector<int64_t>* of : {&source, &from, &to}) of->resize(rows);
  fledge_path_rows(emits, path, emitted, c.length, first_row, c.page_table, row_start.data(), last.data(),
                   positions.data(), tokens.data(), source.data(), from.data(), to.data(), c.requests, width, c.pages,
                   kPage);
}

// Verify, accept and extend, where no request wants logits; see `_finish` in round.py.
void finish(const RoundModels& m, const CarriedState& c, const Drawing& draws, const Drafted& t, Accepted* out) {
  auto now = std::chrono::steady_clock::now;
  auto begun = now();
  s.target.run(m, c, draws, t);
  auto verified = now();
  Paths& paths = s.paths;
  paths.accept(c, t, s.target.answers, out);
  auto accepted = now();
  fledge_extend(&m, &c, &draws, paths.emits.data(), out->path, paths.emitted.data(), t.first, s.target.features.data(),
                t.width, t.masks != nullptr);
  out->verify = std::chrono::duration<double>(verified - begun).count();
  out->accept = std::chrono::duration<double>(accepted - verified).count();
}

}  // namespace fledge

extern "C" {

// See `extend` in round.py: paths [B, width] through the verify's rows, whose `features` are given. `move`: the nodes
// may be elsewhere than they belong.
void fledge_extend(const RoundModels* m, const CarriedState* c, const Drawing* draws, const int64_t* emits,
                   const int64_t* path, const int64_t* emitted, const int64_t* first_row, const bf16* features,
                   int64_t width, int64_t move) {
  int64_t b_count = c->requests;
  Paths& paths = s.paths;
  paths.lay_out(*c, emits, path, emitted, first_row, width);
  int64_t rows = paths.rows();
  if (move)
    fledge_move_kv(m->kv, m->layers, m->pages, m->kv_heads, m->head_dim, paths.from.data(), paths.to.data(), rows);
  s.head.row_start = paths.row_start;
  s.head.tokens = paths.tokens;
  s.head.positions = paths.positions;
  s.wanted.assign(paths.last.begin(), paths.last.end());
  HeadOutputs out{};
  out.logit_rows = s.wanted.data();
  out.count = b_count;
  out.k = c->topk;
  out.features = features;
  out.token_ids = c->first_token_ids;
  out.log_probs = c->first_log_probs;
  out.hidden = c->hidden;
  out.feature_rows = paths.source.data();
  s.after.resize(b_count);
  for (int64_t b = 0; b < b_count; ++b) s.after[b] = paths.positions[paths.last[b]] + kAhead;
  s.head.toss(*draws, b_count, 1, s.after, &out);
  for (int32_t& position : s.head.positions) position = std::min<int32_t>(position, m->last_position);
  s.head.run(*m, *c, rows, 0, nullptr, out);
  fledge_advance(emits, emitted, c->length, c->bonus, c->history, b_count, width, c->known);
}

}  // extern "C"
