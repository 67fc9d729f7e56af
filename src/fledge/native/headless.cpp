// Rounds without the head, each in one call: plain ones, and those whose drafts are all copied by prompt lookup.
#include <cstring>
#include <numeric>

#include "round.h"

using namespace fledge;

namespace {

struct Scratch {  // of the thread that runs rounds
  TargetRows target;
  Paths paths;
  std::vector<int32_t> row_start, tokens;
  std::vector<int64_t> picked, emits, passed;
};
thread_local Scratch s;

int64_t row_bytes(const RoundModels& m) { return 3 * m.target->shape.hidden * sizeof(bf16); }

// Drafts a chain below each request's bonus token: the tokens that lookup proposes, as many as are worth a verify.
void copy_tokens(const CarriedState& c, const DraftTerms& t, Drafts* out) {
  int64_t requests = c.requests, most = t.lookup;
  DraftArrays made{*out, requests, most};
  fledge_find_repeats(c.history, c.length, t.log_rates, made.matched(), made.proposed(), made.rates(), requests,
                      c.known, t.longest, most);
  float* scores = made.scores();
  for (int64_t b = 0; b < requests; ++b) {
    double sum = 0;
    for (int64_t n = 0; n < most; ++n) scores[b * most + n] = static_cast<float>(sum += made.rates()[b * most + n]);
  }
  share_out(c, t, scores, nullptr, most, made.counts());
  out->levels = 0;
  out->nodes = 1 + *std::max_element(made.counts(), made.counts() + requests);
  for (int64_t b = 0; b < requests; ++b)
    for (int64_t n = 0; n < out->nodes; ++n) {
      int64_t at = b * out->nodes + n, copied = b * most + n - 1;
      made.token_ids()[at] = n == 0 ? c.bonus[b] : n <= made.counts()[b] ? made.proposed()[copied] : -1;
      made.parents()[at] = n - 1;
      made.depths()[at] = n;
      made.masks()[at] = static_cast<int64_t>((uint64_t(2) << n) - 1);  // all nodes up to this one
      made.log_probs(most)[at] = n ? scores[copied] : 0.0f;
    }
  lay_out_verify(c, t, out);
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
  if (!m->head_kv) return;
  const Shape& s = m->head->shape;
  forget_values(m->head_kv, {1, pages, s.kv_heads, s.head_dim}, page_ids, count);
}

// One token per request from the target alone, where none wants logits; see `plain_round` in round.py. `emitted` [B, 2]
// are ones and tokens. Returns the target's seconds.
double fledge_plain_round(const RoundModels* m, const CarriedState* c, const Drawing* draws, const Recent* recent,
                          int64_t* emitted) {
  auto begun = std::chrono::steady_clock::now();
  int64_t requests = c->requests;
  s.row_start.resize(requests + 1);
  std::iota(s.row_start.begin(), s.row_start.end(), 0);
  s.picked.assign(s.row_start.begin(), s.row_start.end());
  s.tokens.assign(c->bonus, c->bonus + requests);
  Trees roots{};
  roots.picked = s.picked.data();
  roots.row_start = s.row_start.data();
  roots.tokens = s.tokens.data();
  roots.positions = c->length;
  roots.nodes = 1;
  roots.rows = requests;
  s.target.run(*m, *c, *draws, roots, recent->tokens != nullptr);
  double seconds = seconds_since(begun);
  const int64_t* answers = s.target.answers.data();
  if (recent->tokens)
    fledge_keep(answers, reinterpret_cast<const char*>(s.target.features.data()), nullptr, c->length,
                s.row_start.data(), recent->tokens, recent->features, requests, recent->kept, row_bytes(*m));
  for (int64_t b = 0; b < requests; ++b) {
    emitted[2 * b] = 1;
    emitted[2 * b + 1] = answers[b];
  }
  s.emits.assign(requests, 1);
  fledge_advance(s.emits.data(), answers, c->length, c->bonus, c->history, requests, 1, c->known);
  return seconds;
}

// A round whose drafts are all copied, where no request wants logits; see `lookup_round` in round.py. If no copy is
// worth a verify, `made` has one node per request, and nothing else is done.
void fledge_lookup_round(const RoundModels* m, const CarriedState* c, const DraftTerms* t, const Drawing* draws,
                         Drafts* made, Accepted* out, const Recent* recent) {
  auto begun = std::chrono::steady_clock::now();
  copy_tokens(*c, *t, made);
  out->draft = seconds_since(begun);
  if (made->nodes == 1) return;
  int64_t requests = c->requests, width = made->nodes;
  Trees chains = trees_of({*made, requests, t->lookup}, *t, width, true);
  begun = std::chrono::steady_clock::now();
  s.target.run(*m, *c, *draws, chains, recent->tokens != nullptr);
  out->verify = seconds_since(begun);
  begun = std::chrono::steady_clock::now();
  Paths& paths = s.paths;
  paths.accept(*c, chains, s.target.answers, out);
  out->accept = seconds_since(begun);
  if (recent->tokens) {
    paths.lay_out(*c, paths.emits.data(), out->path, paths.emitted.data(), chains.first, width);
    s.passed.assign(paths.tokens.begin(), paths.tokens.end());
    fledge_keep(s.passed.data(), reinterpret_cast<const char*>(s.target.features.data()), paths.source.data(),
                paths.positions.data(), paths.row_start.data(), recent->tokens, recent->features, requests,
                recent->kept, row_bytes(*m));
  }
  fledge_advance(paths.emits.data(), paths.emitted.data(), c->length, c->bonus, c->history, requests, width, c->known);
}

}  // extern "C"
