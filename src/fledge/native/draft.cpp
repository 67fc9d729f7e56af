// Drafting in one call: grows a tree for each request, level by level, and selects the nodes to verify.
#include <numeric>

#include "round.h"

using namespace fledge;

namespace {

struct Scratch {  // of the thread that runs rounds
  HeadRows head;
  std::vector<int64_t> ids, children, frontier, mask, next_mask, expanded, numbers, rows, after;
  std::vector<int64_t> agreed, number, slots, parents;
  std::vector<float> reached, level, raised, best, log_probs, slot_scores, mass;
  std::vector<bf16> hidden, out;
};
thread_local Scratch s;

// The candidates of B growing trees; see `TreeGrowth`.
struct Growth {
  const RoundModels& m;
  const CarriedState& c;
  const DraftTerms& t;
  const Drawing& draws;
  DraftArrays made;
  std::vector<int64_t> token_ids = {};  // by level: [B, K], [B, K * K], ...
  std::vector<float> scores = {};       // likewise
  int64_t levels = 1, groups = 0;       // groups: nodes that are expanded, the root included

  int64_t requests() const { return c.requests; }
  int64_t width(int64_t level) const { return level ? t.topk * t.topk : t.topk; }
  int64_t begins(int64_t level) const { return level ? t.topk + (level - 1) * t.topk * t.topk : 0; }
  int64_t candidates() const { return begins(levels); }

  // Adds level `level`, counted from 1, of candidates `ids` with scores s.level, raised where the proposals agree.
  void add(int64_t level, const int64_t* ids, const int64_t* parents) {
    int64_t count = width(level - 1), first = 1 + begins(level - 1);
    const float* found = s.level.data();
    if (level <= t.lookup) {
      s.raised.resize(requests() * count);
      fledge_raise(ids, found, parents, made.proposed(), made.rates(), s.agreed.data(), s.number.data(),
                   s.reached.data(), s.raised.data(), requests(), count, parents ? t.topk : count, t.lookup, level,
                   first);
      found = s.raised.data();
    }
    token_ids.insert(token_ids.end(), ids, ids + requests() * count);
    scores.insert(scores.end(), found, found + requests() * count);
  }

  // The first level, which the last extend left, and lookup's proposals.
  void begin() {
    int64_t b_count = requests(), k = t.topk;
    if (t.lookup)
      fledge_find_repeats(c.history, c.length, t.log_rates, made.matched(), made.proposed(), made.rates(), b_count,
                          c.known, t.longest, t.lookup);
    s.agreed.assign(b_count, 0);
    s.number.assign(b_count, 0);
    s.reached.assign(b_count, 0.0f);
    s.frontier.resize(b_count * k);
    s.mask.resize(b_count * k);
    s.numbers.resize(b_count * k);
    s.level.resize(b_count * k);
    for (int64_t b = 0; b < b_count; ++b)
      for (int64_t n = 0; n < k; ++n) {
        s.frontier[b * k + n] = c.first_token_ids[b * c.topk + n];
        s.level[b * k + n] = c.first_log_probs[b * c.topk + n];
        s.mask[b * k + n] = int64_t(uint64_t(1) << n);
        s.numbers[b * k + n] = 1 + n;
      }
    add(1, s.frontier.data(), nullptr);
    s.best.assign(scores.begin(), scores.end());
    groups = 1 + k;
    s.expanded.assign(b_count * (1 + t.depth * k), 0);
    keep_numbers(1);
  }

  // The frontier will be expanded: its numbers are kept in `expanded`, from place `at` on.
  void keep_numbers(int64_t at) {
    for (int64_t b = 0; b < requests(); ++b)
      std::copy_n(&s.numbers[b * t.topk], t.topk, &s.expanded[b * (1 + t.depth * t.topk) + at]);
  }

  // See `ConfidentPlan.goes_deeper`: whether one more level is worth a draft step.
  bool goes_deeper() const {
    if (!t.calibration) return true;
    s.mass.resize(requests());
    fledge_open_mass(s.best.data(), t.lookup ? made.rates() : nullptr, s.agreed.data(), s.reached.data(),
                     s.mass.data(), requests(), t.topk, t.lookup, levels);
    double share = t.calibration[levels] * t.next[levels], gain = 0;
    double row = cost_of(t.known, t.costs, t.points, requests() * (levels + 2)) -
                 cost_of(t.known, t.costs, t.points, requests() * (levels + 1));
    for (float mass : s.mass) gain += std::max(mass * share - row / double(requests()), 0.0);
    return gain > t.step;
  }

  // A draft step: the frontier's children are the next level.
  void step() {
    int64_t b_count = requests(), k = t.topk, rows = b_count * k, width = m.head->shape.hidden;
    s.head.tokens.assign(s.frontier.begin(), s.frontier.end());
    s.head.positions.resize(rows);
    s.head.row_start.resize(b_count + 1);
    s.after.resize(rows);
    for (int64_t b = 0; b <= b_count; ++b) s.head.row_start[b] = static_cast<int32_t>(b * k);
    for (int64_t r = 0; r < rows; ++r) {
      s.head.positions[r] = static_cast<int32_t>(std::min(c.length[r / k] + levels - 1, m.last_position));
      s.after[r] = s.head.positions[r] + kAhead;
    }
    s.hidden.resize(rows * width);
    for (int64_t r = 0; r < rows; ++r) {
      const bf16* from = levels == 1 ? c.hidden + r / k * width : &s.out[s.rows[r] * width];
      std::copy_n(from, width, &s.hidden[r * width]);
    }
    s.out.resize(rows * width);
    s.children.resize(rows * k);
    s.log_probs.resize(rows * k);
    HeadOutputs out{};
    out.count = rows;
    out.k = k;
    out.inputs = s.hidden.data();
    out.token_ids = s.children.data();
    out.log_probs = s.log_probs.data();
    out.hidden = s.out.data();
    s.head.sample(draws, b_count, k, s.after, &out);
    s.head.run(m, c, rows, (levels - 1) * k, s.mask.data(), out);
    s.level.resize(rows * k);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t n = 0; n < k; ++n) s.level[r * k + n] = s.best[r] + s.log_probs[r * k + n];
    add(levels + 1, s.children.data(), s.numbers.data());
    ++levels;
    if (levels == t.depth) return;
    s.next_mask.resize(rows);
    s.rows.resize(rows);
    fledge_frontier(s.children.data(), &scores[b_count * begins(levels - 1)], s.mask.data(), s.frontier.data(),
                    s.best.data(), s.next_mask.data(), s.numbers.data(), s.rows.data(), b_count, k, levels - 1);
    s.mask.swap(s.next_mask);
    keep_numbers(groups);
    groups += k;
  }
};

}  // namespace

extern "C" {

// See `draft` in round.py.
void fledge_draft(const RoundModels* m, const CarriedState* c, const DraftTerms* t, const Drawing* draws, Drafts* out) {
  int64_t requests = c->requests, copied = t->lookup;
  DraftArrays made{*out, requests, copied};
  Growth g{*m, *c, *t, *draws, made};
  g.begin();
  while (g.levels < t->depth && g.goes_deeper()) g.step();
  out->levels = g.levels;

  // All candidates side by side, lookup's own last.
  int64_t grown = g.candidates(), count = grown + copied;
  float* scores = made.scores();
  s.ids.resize(requests * (1 + count));
  s.slots.resize(requests * copied);
  s.parents.resize(requests * copied);
  s.slot_scores.resize(requests * copied);
  if (copied)
    fledge_fill_slots(made.proposed(), made.rates(), s.agreed.data(), s.number.data(), s.reached.data(), s.slots.data(),
                      s.slot_scores.data(), s.parents.data(), requests, copied, grown);
  std::vector<int64_t> depths(1 + count);
  for (int64_t level = 0; level < g.levels; ++level)
    std::fill_n(&depths[1 + g.begins(level)], g.width(level), level + 1);
  std::iota(depths.begin() + 1 + grown, depths.end(), 1);
  std::vector<int64_t> expanded(requests * g.groups);
  for (int64_t b = 0; b < requests; ++b) {
    int64_t* ids = &s.ids[b * (1 + count)];
    ids[0] = c->bonus[b];
    for (int64_t level = 0; level < g.levels; ++level) {
      int64_t width = g.width(level), from = requests * g.begins(level) + b * width;
      std::copy_n(&g.token_ids[from], width, ids + 1 + g.begins(level));
      std::copy_n(&g.scores[from], width, scores + b * count + g.begins(level));
    }
    std::copy_n(s.slots.data() + b * copied, copied, ids + 1 + grown);
    std::copy_n(s.slot_scores.data() + b * copied, copied, scores + b * count + grown);
    std::copy_n(&s.expanded[b * (1 + t->depth * t->topk)], g.groups, &expanded[b * g.groups]);
  }

  share_out(*c, *t, scores, depths.data() + 1, count, made.counts());
  out->nodes = 1 + *std::max_element(made.counts(), made.counts() + requests);
  fledge_select(s.ids.data(), scores, depths.data(), expanded.data(), copied ? s.parents.data() : nullptr,
                made.counts(), made.token_ids(), made.parents(), made.depths(), made.masks(), made.log_probs(count),
                requests, count, g.groups, copied, t->topk, out->nodes);
  lay_out_verify(*c, *t, out);
}

}  // extern "C"
