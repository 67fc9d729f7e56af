// A round in one call.
#include "round.h"

#include <cstring>
#include <numeric>

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

// Makes the accepted paths, as laid out, part of the committed length: in the target's KV, and by a forward in the
// head's. `move`: the nodes' keys and values may be elsewhere than they belong.
void extend(const RoundModels& m, const CarriedState& c, const Drawing& draws, const bf16* features, bool move) {
  Paths& paths = s.paths;
  int64_t requests = c.requests, rows = paths.rows();
  if (move)
    fledge_move_kv(m.kv, m.layers, m.pages, m.kv_heads, m.head_dim, paths.from.data(), paths.to.data(), rows);
  s.head.row_start = paths.row_start;
  s.head.tokens = paths.tokens;
  s.head.positions = paths.positions;
  s.wanted.assign(paths.last.begin(), paths.last.end());
  HeadOutputs out{};
  out.logit_rows = s.wanted.data();
  out.count = requests;
  out.k = c.topk;
  out.features = features;
  out.token_ids = c.first_token_ids;
  out.log_probs = c.first_log_probs;
  out.hidden = c.hidden;
  out.feature_rows = paths.source.data();
  s.after.resize(requests);
  for (int64_t b = 0; b < requests; ++b) s.after[b] = paths.positions[paths.last[b]] + kAhead;
  s.head.sample(draws, requests, 1, s.after, &out);
  for (int32_t& position : s.head.positions) position = std::min<int32_t>(position, m.last_position);
  s.head.run(m, c, rows, 0, nullptr, out);
}

// Keeps what a head needs to catch up on the accepted paths, as laid out: position p in column p % kept.
void keep(const RoundModels& m, const CarriedState& c, const Recent& recent, const bf16* features) {
  const Paths& paths = s.paths;
  int64_t bytes = 3 * m.target->shape.hidden * sizeof(bf16);
  for (int64_t b = 0; b < c.requests; ++b)
    for (int64_t r = paths.row_start[b]; r < paths.row_start[b + 1]; ++r) {
      int64_t to = b * recent.kept + paths.positions[r] % recent.kept;
      recent.tokens[to] = paths.tokens[r];
      std::memcpy(recent.features + to * bytes, reinterpret_cast<const char*>(features) + paths.source[r] * bytes, bytes);
    }
}

// Writes the states along the accepted paths, as laid out.
void hand_out(const RoundModels& m, const CarriedState& c, const Accepted& out) {
  const Paths& paths = s.paths;
  int64_t hidden = m.target->shape.hidden;
  for (int64_t b = 0; b < c.requests; ++b)
    for (int64_t r = paths.row_start[b]; r < paths.row_start[b + 1]; ++r) {
      bf16* to = out.states + (b * out.width + r - paths.row_start[b]) * 4 * hidden;
      std::memcpy(to, s.target.features + paths.source[r] * 3 * hidden, 3 * hidden * sizeof(bf16));
      std::memcpy(to + 3 * hidden, s.target.hidden + paths.source[r] * hidden, hidden * sizeof(bf16));
    }
}

// The accepted tokens become part of the requests. What lies beyond a history goes to its last place.
void advance(const CarriedState& c, int64_t width) {
  for (int64_t b = 0; b < c.requests; ++b) {
    const int64_t* emitted = &s.paths.emitted[b * width];
    for (int64_t n = 0; c.history_size && n < width; ++n) {
      const int64_t column = std::min(c.length[b] + 1 + n, c.history_size - 1);
      c.history[b * c.history_size + column] = static_cast<int32_t>(emitted[n]);
    }
    c.length[b] += static_cast<int32_t>(s.paths.emits[b]);
    c.bonus[b] = emitted[s.paths.emits[b] - 1];
  }
}

}  // namespace

extern "C" {

int64_t fledge_draft_room(int64_t requests, const DraftTerms* t) {
  Drafts largest{};
  largest.nodes = t->nodes;
  largest.rows = requests * t->nodes;
  return DraftArrays::lay_out(&largest, requests, *t);
}

// See `TorchRound.run`.
int fledge_round(const RoundModels* m, const CarriedState* c, const DraftTerms* t, const Drawing* draws,
                 const Recent* recent, const Hooks* hooks, Drafts* made, Accepted* out) {
  auto begun = std::chrono::steady_clock::now();
  if (int failed = draft(*m, *c, *t, *draws, *hooks, made)) return failed;
  DraftArrays trees{*made, c->requests, *t};
  out->draft = seconds_since(begun);
  begun = std::chrono::steady_clock::now();
  bool follows = t->depth > 0;
  if (hooks->verify) {
    if (int failed = s.target.ask(*hooks, trees)) return failed;
  } else {
    s.target.run(*m, *c, *draws, trees, follows || recent->tokens || out->states, out->states);
  }
  out->verify = seconds_since(begun);
  begun = std::chrono::steady_clock::now();
  s.paths.accept(trees, s.target.answers, out);
  s.paths.lay_out(*c, trees, out->path);
  out->accept = seconds_since(begun);
  if (follows) extend(*m, *c, *draws, s.target.features, !trees.chains());
  else if (recent->tokens) keep(*m, *c, *recent, s.target.features);
  if (out->states) hand_out(*m, *c, *out);
  advance(*c, out->width);
  return 0;
}

}  // extern "C"

namespace fledge {

void TargetRows::run(const RoundModels& m, const CarriedState& c, const Drawing& d, const DraftArrays& t,
                     bool with_features, bool with_hidden) {
  int64_t rows = t.made.rows;
  chosen.resize(rows);
  held.resize(with_features ? rows * 3 * m.target->shape.hidden : 0);
  held_hidden.resize(with_hidden ? rows * m.target->shape.hidden : 0);
  features = held.data();
  hidden = held_hidden.data();
  positions.resize(rows);
  for (int64_t r = 0; r < rows; ++r) positions[r] = std::min<int32_t>(t.positions()[r], m.last_position);
  offset.assign(c.requests, 0);
  DecoderOutputs out{};
  out.count = rows;
  out.chosen = chosen.data();
  out.features = with_features ? held.data() : nullptr;
  out.hidden = with_hidden ? held_hidden.data() : nullptr;
  if (d.filters) {
    filters.resize(rows * 4);
    coins.resize(rows);
    for (int64_t r = 0; r < rows; ++r) {
      int64_t b = t.picked()[r] / t.made.nodes;
      std::copy_n(d.filters + b * 4, 4, &filters[r * 4]);
      coins[r] = coin(d.keys[b], t.positions()[r] + 1);
    }
    out.filters = filters.data();
    out.coins = coins.data();
  }
  Batch batch{static_cast<int>(rows), static_cast<int>(c.requests), static_cast<int>(c.pages),
              t.tokens(), positions.data(), t.row_start(), c.length, offset.data(), c.page_table,
              t.chains() ? nullptr : reinterpret_cast<const uint64_t*>(t.row_masks())};
  fledge_decoder_forward(m.target, &batch, m.kv, m.pages, &out);
  spread(t);
}

int TargetRows::ask(const Hooks& hooks, const DraftArrays& t) {
  chosen.resize(t.made.rows);
  if (int failed = hooks.verify(chosen.data(), &features, &hidden)) return failed;
  spread(t);
  return 0;
}

void TargetRows::spread(const DraftArrays& t) {
  answers.assign(t.requests * t.made.nodes, -1);
  for (int64_t r = 0; r < t.made.rows; ++r) answers[t.picked()[r]] = chosen[r];
}

void Paths::accept(const DraftArrays& t, const std::vector<int64_t>& answers, Accepted* out) {
  int64_t width = out->width = t.width();
  emits.resize(t.requests);
  emitted.resize(t.requests * width);
  for (int64_t b = 0; b < t.requests; ++b) {
    bool speculates = !t.t.speculates || t.t.speculates[b];
    emits[b] = accept_path(t.tree(b), &answers[b * t.made.nodes], t.made.nodes, speculates, width,
                           out->path + b * width, &emitted[b * width]);
    int64_t* to = out->emitted + b * (1 + width);
    to[0] = emits[b];
    std::copy_n(&emitted[b * width], width, to + 1);
  }
}

void Paths::lay_out(const CarriedState& c, const DraftArrays& t, const int64_t* path) {
  int64_t width = t.width();
  row_start.assign(1, 0);
  last.clear();
  positions.clear();
  tokens.clear();
  for (std::vector<int64_t>* of : {&source, &from, &to}) of->clear();
  for (int64_t b = 0; b < c.requests; ++b) {
    const int32_t* pages = c.page_table + b * c.pages;
    auto slot = [&](int64_t index) { return int64_t(pages[index / kPage]) * kPage + index % kPage; };
    for (int64_t d = 0; d < emits[b]; ++d) {
      int64_t node = path[b * width + d];
      positions.push_back(static_cast<int32_t>(c.length[b] + d));
      tokens.push_back(static_cast<int32_t>(emitted[b * width + d]));
      source.push_back(t.first()[b] + node);
      from.push_back(slot(c.length[b] + node));
      to.push_back(slot(c.length[b] + d));
    }
    row_start.push_back(static_cast<int32_t>(rows()));
    last.push_back(rows() - 1);
  }
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
  coins.resize(requests * width);
  for (int64_t r = 0; r < requests * width; ++r) {
    std::copy_n(d.filters + r / width * 4, 4, &filters[r * 4]);
    filters[r * 4] *= kHeadTemperature;
    coins[r] = coin(d.keys[r / width], at[r]);
  }
  out->filters = filters.data();
  out->coins = coins.data();
}

}  // namespace fledge
