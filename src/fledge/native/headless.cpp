// Rounds without the head, plain ones and lookup's: they equal engine/round.py's torch code, bit for bit.
#include <algorithm>
#include <chrono>
#include <numeric>

#include "repeats.h"
#include "round.h"

using namespace fledge;

namespace {

struct Scratch {  // of the thread that runs rounds
  TargetRows target;
  Paths paths;
  std::vector<int32_t> row_start, tokens;
  std::vector<int64_t> picked, emits, passed;
  std::vector<float> worth;
};
thread_local Scratch s;

double seconds_since(std::chrono::steady_clock::time_point begun) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
}

int64_t row_bytes(const RoundModels& m) { return 3 * m.target->shape.hidden * sizeof(bf16); }

// The first `counts` [B] tokens of what each request's own tokens propose, as a chain below its bonus token; `made`.
void copy_tokens(const CarriedState& c, const DraftTerms& t, Drafts* made) {
  int64_t b_count = c.requests, most = t.lookup;
  int64_t *proposed = made->integers, *matched = proposed + b_count * most, *counts = matched + b_count;
  float *rates = made->floats, *scores = rates + b_count * most;
  fledge_find_repeats(c.history, c.length, t.log_rates, matched, proposed, rates, b_count, c.known, t.longest, most);
  for (int64_t b = 0; b < b_count; ++b) {
    double sum = 0;
    for (int64_t n = 0; n < most; ++n) scores[b * most + n] = static_cast<float>(sum += rates[b * most + n]);
  }
  std::fill_n(counts, b_count, t.nodes - 1);
  if (t.calibration) {
    s.worth.assign(scores, scores + b_count * most);
    for (int64_t b = 0; t.speculates && b < b_count; ++b)
      if (!t.speculates[b]) std::fill_n(&s.worth[b * most], most, kNever);
    fledge_share_out(s.worth.data(), nullptr, nullptr, t.known, t.costs, counts, b_count, most, t.nodes - 1, t.points);
  }
  int64_t nodes = 1 + *std::max_element(counts, counts + b_count), all = b_count * nodes;
  made->levels = 0;
  made->seconds = 0;
  made->nodes = nodes;
  int64_t* tree = counts + b_count;
  float* log_probs = scores + b_count * most;
  for (int64_t at = 0; at < all; ++at) {
    int64_t b = at / nodes, n = at % nodes;
    tree[at] = n == 0 ? c.bonus[b] : n <= counts[b] ? proposed[b * most + n - 1] : -1;
    tree[all + at] = n - 1;
    tree[2 * all + at] = n;
    tree[3 * all + at] = (int64_t(2) << n) - 1;
    log_probs[at] = n ? scores[b * most + n - 1] : 0.0f;
  }
  lay_out(c, counts, made);
}

void forget_values(bf16* kv, const KvShape& shape, const int32_t* page_ids, int64_t count) {
  for (int layer = 0; layer < shape.layers; ++layer)
    for (int64_t n = 0; n < count; ++n)
      for (int head = 0; head < shape.kv_heads; ++head)
        std::memset(kv + shape.page(layer, page_ids[n], head) + shape.half(), 0, shape.half() * sizeof(bf16));
}

}  // namespace

extern "C" {

// See `NativePlain.forget`.
void fledge_forget(const RoundModels* m, const int32_t* page_ids, int64_t count) {
  int pages = static_cast<int>(m->pages);
  forget_values(m->kv, {m->layers, pages, m->kv_heads, m->head_dim}, page_ids, count);
  if (m->head_kv) forget_values(m->head_kv, {1, pages, m->head->shape.kv_heads, m->head->shape.head_dim}, page_ids, count);
}

// One token per request from the target alone, where none wants logits; see `plain_round` in round.py. `emitted` [B, 2]
// are ones and tokens. Returns the target's seconds.
double fledge_plain_round(const RoundModels* m, const CarriedState* c, const Drawing* draws, const Recent* recent,
                          int64_t* emitted) {
  auto begun = std::chrono::steady_clock::now();
  int64_t b_count = c->requests;
  s.row_start.resize(b_count + 1);
  std::iota(s.row_start.begin(), s.row_start.end(), 0);
  s.picked.assign(s.row_start.begin(), s.row_start.end());
  s.tokens.assign(c->bonus, c->bonus + b_count);
  Drafted roots{};
  roots.picked = s.picked.data();
  roots.row_start = s.row_start.data();
  roots.tokens = s.tokens.data();
  roots.positions = c->length;
  roots.nodes = 1;
  roots.rows = b_count;
  s.target.run(*m, *c, *draws, roots, recent->tokens != nullptr);
  double seconds = seconds_since(begun);
  const int64_t* answers = s.target.answers.data();
  if (recent->tokens)
    fledge_keep(answers, reinterpret_cast<const char*>(s.target.features.data()), nullptr, c->length, s.row_start.data(),
                recent->tokens, recent->features, b_count, recent->kept, row_bytes(*m));
  for (int64_t b = 0; b < b_count; ++b) {
    emitted[2 * b] = 1;
    emitted[2 * b + 1] = answers[b];
  }
  s.emits.assign(b_count, 1);
  fledge_advance(s.emits.data(), answers, c->length, c->bonus, c->history, b_count, 1, c->known);
  return seconds;
}

// A round whose drafts are all copied, where no request wants logits; see `lookup_round` in round.py. If none is worth
// it, `made` has one node per request, and nothing is done.
void fledge_lookup_round(const RoundModels* m, const CarriedState* c, const DraftTerms* t, const Drawing* draws,
                         Drafts* made, Accepted* out, const Recent* recent) {
  auto begun = std::chrono::steady_clock::now();
  copy_tokens(*c, *t, made);
  out->draft = seconds_since(begun);
  if (made->nodes == 1) return;
  int64_t b_count = c->requests, width = made->nodes;
  Drafted chains = drafted(*made, b_count, *t, width, true);
  auto drafted_at = std::chrono::steady_clock::now();
  s.target.run(*m, *c, *draws, chains, recent->tokens != nullptr);
  out->verify = seconds_since(drafted_at);
  auto verified_at = std::chrono::steady_clock::now();
  Paths& paths = s.paths;
  paths.accept(*c, chains, s.target.answers, out);
  out->accept = seconds_since(verified_at);
  if (recent->tokens) {
    paths.lay_out(*c, paths.emits.data(), out->path, paths.emitted.data(), chains.first, width);
    s.passed.assign(paths.tokens.begin(), paths.tokens.end());
    fledge_keep(s.passed.data(), reinterpret_cast<const char*>(s.target.features.data()), paths.source.data(),
                paths.positions.data(), paths.row_start.data(), recent->tokens, recent->features, b_count, recent->kept,
                row_bytes(*m));
  }
  fledge_advance(paths.emits.data(), paths.emitted.data(), c->length, c->bonus, c->history, b_count, width, c->known);
}

}  // extern "C"
