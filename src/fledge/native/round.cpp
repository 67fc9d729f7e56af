// A speculative round in one call, and extend in one of its own, where no request wants logits.
#include "round.h"

#include <numeric>

using namespace fledge;

namespace {

struct Scratch {  // of the thread that runs rounds
  HeadRows head;
  TargetRows target;
  Paths paths;
  std::vector<int32_t> wanted;
  std::vector<int64_t> after, kept;
  std::vector<float> worth;
};
thread_local Scratch s;

}  // namespace

extern "C" {

// See `speculative_round` in round.py.
void fledge_round(const RoundModels* m, const CarriedState* c, const DraftTerms* t, const Drawing* draws, Drafts* made,
                  Accepted* out) {
  auto begun = std::chrono::steady_clock::now();
  fledge_draft(m, c, t, draws, made);
  int64_t depth = std::min(made->levels, made->nodes - 1), copied = std::min(t->lookup, made->nodes - 1);
  bool chains = !depth || (t->topk == 1 && !copied);
  Trees trees = trees_of({*made, c->requests, t->lookup}, *t, std::max(depth, copied) + 1, chains);
  out->draft = seconds_since(begun);
  begun = std::chrono::steady_clock::now();
  s.target.run(*m, *c, *draws, trees);
  out->verify = seconds_since(begun);
  begun = std::chrono::steady_clock::now();
  s.paths.accept(*c, trees, s.target.answers, out);
  out->accept = seconds_since(begun);
  fledge_extend(m, c, draws, s.paths.emits.data(), out->path, s.paths.emitted.data(), trees.first,
                s.target.features.data(), trees.width, trees.masks != nullptr);
}

// See `extend` in round.py: paths [B, width] through the verify's rows, whose `features` are given. `move`: the nodes'
// keys and values may be elsewhere than they belong.
void fledge_extend(const RoundModels* m, const CarriedState* c, const Drawing* draws, const int64_t* emits,
                   const int64_t* path, const int64_t* emitted, const int64_t* first_row, const bf16* features,
                   int64_t width, int64_t move) {
  int64_t requests = c->requests;
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
  out.count = requests;
  out.k = c->topk;
  out.features = features;
  out.token_ids = c->first_token_ids;
  out.log_probs = c->first_log_probs;
  out.hidden = c->hidden;
  out.feature_rows = paths.source.data();
  s.after.resize(requests);
  for (int64_t b = 0; b < requests; ++b) s.after[b] = paths.positions[paths.last[b]] + kAhead;
  s.head.sample(*draws, requests, 1, s.after, &out);
  for (int32_t& position : s.head.positions) position = std::min<int32_t>(position, m->last_position);
  s.head.run(*m, *c, rows, 0, nullptr, out);
  fledge_advance(emits, emitted, c->length, c->bonus, c->history, requests, width, c->known);
}

}  // extern "C"

namespace fledge {

void share_out(const CarriedState& c, const DraftTerms& t, const float* scores, const int64_t* depths,
               int64_t candidates, int64_t* counts) {
  std::fill_n(counts, c.requests, t.nodes - 1);
  if (!t.calibration) return;
  s.worth.assign(scores, scores + c.requests * candidates);
  for (int64_t b = 0; t.speculates && b < c.requests; ++b)
    if (!t.speculates[b]) std::fill_n(&s.worth[b * candidates], candidates, kNever);
  std::vector<float> calibration;
  if (depths) calibration.assign(t.calibration, t.calibration + 1 + std::max(t.depth, t.lookup));
  fledge_share_out(s.worth.data(), depths ? calibration.data() : nullptr, depths, t.known, t.costs, counts, c.requests,
                   candidates, t.nodes - 1, t.points);
}

void lay_out_verify(const CarriedState& c, const DraftTerms& t, Drafts* made) {
  DraftArrays a{*made, c.requests, t.lookup};
  s.kept.assign(a.counts(), a.counts() + c.requests);
  for (int64_t& count : s.kept) ++count;
  made->rows = std::accumulate(s.kept.begin(), s.kept.end(), int64_t(0));
  fledge_some_rows(s.kept.data(), a.row_start(), a.first(), a.picked(), c.requests, made->nodes);
  fledge_verify_rows(a.token_ids(), a.depths(), a.masks(), c.length, a.picked(), a.tokens(), a.positions(),
                     a.row_masks(), made->rows, made->nodes);
}

void TargetRows::run(const RoundModels& m, const CarriedState& c, const Drawing& d, const Trees& t,
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
    filters.resize(rows * 4);
    keys.resize(rows);
    after.resize(rows);
    coins.resize(rows);
    for (int64_t r = 0; r < rows; ++r) {
      int64_t b = t.picked[r] / t.nodes;
      std::copy_n(d.filters + b * 4, 4, &filters[r * 4]);
      keys[r] = d.keys[b];
      after[r] = t.positions[r] + 1;
    }
    fledge_coins(keys.data(), after.data(), coins.data(), rows);
    out.filters = filters.data();
    out.coins = coins.data();
  }
  Batch batch{static_cast<int>(rows), static_cast<int>(c.requests), static_cast<int>(c.pages),
              t.tokens, positions.data(), t.row_start, c.length, offset.data(), c.page_table,
              reinterpret_cast<const uint64_t*>(t.masks)};
  fledge_decoder_forward(m.target, &batch, m.kv, m.pages, &out);
  answers.assign(c.requests * t.nodes, -1);
  for (int64_t r = 0; r < rows; ++r) answers[t.picked[r]] = chosen[r];
}

void Paths::accept(const CarriedState& c, const Trees& t, const std::vector<int64_t>& answers, Accepted* out) {
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

void HeadRows::run(const RoundModels& m, const CarriedState& c, int64_t rows, int64_t at, const int64_t* mask,
                   const HeadOutputs& outputs) {
  prefix.resize(c.requests);
  for (int64_t b = 0; b < c.requests; ++b) prefix[b] = c.length[b] - c.head_start[b];
  offset.assign(c.requests, static_cast<int32_t>(at));
  Batch batch{static_cast<int>(rows), static_cast<int>(c.requests), static_cast<int>(c.pages),
              tokens.data(), positions.data(), row_start.data(), prefix.data(), offset.data(), c.head_pages,
              reinterpret_cast<const uint64_t*>(mask)};
  fledge_head_forward(m.head, &batch, m.head_kv, m.pages, &outputs);
}

void HeadRows::sample(const Drawing& d, int64_t requests, int64_t width, const std::vector<int64_t>& at,
                      HeadOutputs* out) {
  if (!d.filters) return;
  filters.resize(requests * width * 4);
  keys.resize(requests * width);
  coins.resize(requests * width);
  for (int64_t r = 0; r < requests * width; ++r) {
    std::copy_n(d.filters + r / width * 4, 4, &filters[r * 4]);
    filters[r * 4] *= kHeadTemperature;
    keys[r] = d.keys[r / width];
  }
  fledge_coins(keys.data(), at.data(), coins.data(), requests * width);
  out->filters = filters.data();
  out->coins = coins.data();
}

}  // namespace fledge
