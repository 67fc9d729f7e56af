// A whole round in one call.
#include "round.h"

#include <algorithm>
#include <chrono>

using namespace fledge;

extern "C" {

// Draft, verify, accept and extend, where no request wants logits; see `speculative_round` in round.py.
void fledge_round(const RoundModels* m, const CarriedState* c, const DraftTerms* t, const Drawing* draws, Drafts* made,
                  Accepted* out) {
  auto begun = std::chrono::steady_clock::now();
  fledge_draft(m, c, t, draws, made);
  int64_t depth = std::min(made->levels, made->nodes - 1), copied = std::min(t->lookup, made->nodes - 1);
  bool chain = !depth || (t->topk == 1 && !copied);
  Drafted trees = drafted(*made, c->requests, *t, std::max(depth, copied) + 1, chain);
  out->draft = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  finish(*m, *c, *draws, trees, out);
}

}  // extern "C"
