// Drafting: grows a tree for each request, level by level, and selects the nodes to verify.
#include <numeric>

#include "round.h"

using namespace fledge;

namespace {

struct Scratch {  // of the thread that runs rounds
  HeadRows head;
  std::vector<Growth> trees;
  std::vector<int64_t> ids, parents, children, after, depths, first_ids, frontier, above, mask;
  std::vector<float> log_probs, first, worth;
  std::vector<bf16> hidden, out;
};
thread_local Scratch s;

struct Draft {  // of B requests
  const RoundModels& m;
  const CarriedState& c;
  const DraftTerms& t;
  const Drawing& draws;
  const Hooks& hooks;
  const DraftArrays& made;
  int64_t level = 0;  // that all trees have come to

  // Lookup's proposals, and the first level, which the last extend left.
  int begin() {
    int64_t size = made.candidates();
    s.ids.resize(c.requests * (1 + size));
    s.parents.assign(c.requests * (1 + size), 0);
    s.trees.clear();
    for (int64_t b = 0; b < c.requests; ++b) {
      Proposal proposal{made.proposed() + b * t.lookup, made.rates() + b * t.lookup,
                        made.sources() + b * t.lookup, t.lookup};
      if (t.lookup)
        made.matched()[b] = proposal.find(c.history + b * c.history_size, c.length[b], t.log_rates, t.longest);
      s.trees.push_back(Growth{t.topk, &s.ids[b * (1 + size)], &s.parents[b * (1 + size)], made.scores() + b * size,
                               proposal});
      s.trees[b].ids[0] = c.bonus[b];
    }
    s.first_ids.assign(c.first_token_ids, c.first_token_ids + c.requests * c.topk);
    s.first.assign(c.first_log_probs, c.first_log_probs + c.requests * c.topk);
    if (hooks.allow && (t.depth || t.lookup))
      if (int failed = hooks.allow(0, nullptr, nullptr, s.first_ids.data(), s.first.data())) return failed;
    if (!t.depth) return 0;
    for (int64_t b = 0; b < c.requests; ++b) s.trees[b].begin(&s.first_ids[b * c.topk], &s.first[b * c.topk]);
    level = 1;
    return 0;
  }

  // Whether one more level is worth a draft step; see planner/plan.py.
  bool goes_deeper() const {
    if (level >= t.depth) return false;
    if (!t.calibration) return true;
    double share = t.calibration[level] * t.next[level], gain = 0;
    double row = cost_of(t.measured, t.costs, t.points, c.requests * (level + 2)) -
                 cost_of(t.measured, t.costs, t.points, c.requests * (level + 1));
    for (const Growth& tree : s.trees) gain += std::max(tree.open_mass() * share - row / double(c.requests), 0.0);
    return gain > t.step;
  }

  // A draft step: the frontiers' children are the next level.
  int step() {
    int64_t k = t.topk, rows = c.requests * k, width = m.head->shape.hidden;
    s.frontier.resize(rows);
    s.above.resize(rows);
    s.mask.resize(rows);
    s.after.resize(rows);
    s.hidden.resize(rows * width);
    s.head.positions.resize(rows);
    s.head.row_start.resize(c.requests + 1);
    for (int64_t b = 0; b <= c.requests; ++b) s.head.row_start[b] = static_cast<int32_t>(b * k);
    for (int64_t r = 0; r < rows; ++r) {
      const Growth& tree = s.trees[r / k];
      s.frontier[r] = tree.frontier[r % k];
      s.above[r] = r / k * k + tree.above[r % k];
      s.mask[r] = tree.masks[r % k];
      s.head.positions[r] = static_cast<int32_t>(std::min(c.length[r / k] + level - 1, m.last_position));
      s.after[r] = s.head.positions[r] + kAhead;
      const bf16* from = level == 1 ? c.hidden + r / k * width : &s.out[s.above[r] * width];
      std::copy_n(from, width, &s.hidden[r * width]);
    }
    s.head.tokens.assign(s.frontier.begin(), s.frontier.end());
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
    s.head.sample(draws, c.requests, k, s.after, &out);
    s.head.run(m, c, rows, (level - 1) * k, s.mask.data(), out);
    if (hooks.allow)
      if (int failed = hooks.allow(level, s.frontier.data(), s.above.data(), s.children.data(), s.log_probs.data()))
        return failed;
    ++level;
    for (int64_t b = 0; b < c.requests; ++b) {
      s.trees[b].add(&s.children[b * k * k], &s.log_probs[b * k * k]);
      if (level < t.depth) s.trees[b].descend();
    }
    return 0;
  }

  // How many nodes below the root each request gets. If the head drafted no level, all probabilities
  // come from prompt lookup, whose rates are calibrated already.
  void share(int64_t candidates) {
    std::fill_n(made.counts(), c.requests, t.nodes - 1);
    if (!t.calibration) return;
    s.worth.resize(c.requests * candidates);
    for (int64_t b = 0; b < c.requests; ++b) {
      if (!t.speculates || t.speculates[b]) std::copy_n(s.trees[b].scores, candidates, &s.worth[b * candidates]);
      else std::fill_n(&s.worth[b * candidates], candidates, kNever);
    }
    std::vector<float> calibration;
    if (t.depth) calibration.assign(t.calibration, t.calibration + 1 + std::max(t.depth, t.lookup));
    share_out(s.worth.data(), t.depth ? calibration.data() : nullptr, s.depths.data() + 1, t.measured, t.costs, t.points,
              c.requests, candidates, t.nodes - 1, made.counts());
  }

  // The rows of the verify: each request's root, and `counts` nodes below it. An empty node is token 0.
  void lay_out_rows(const Drafts* out) {
    int64_t row = 0;
    made.row_start()[0] = 0;
    for (int64_t b = 0; b < c.requests; ++b) {
      made.first()[b] = row;
      for (int64_t n = 0; n <= made.counts()[b]; ++n, ++row) {
        int64_t node = b * out->nodes + n;
        made.picked()[row] = node;
        made.tokens()[row] = static_cast<int32_t>(std::max<int64_t>(made.token_ids()[node], 0));
        made.positions()[row] = static_cast<int32_t>(c.length[b] + made.depths()[node]);
        made.row_masks()[row] = made.masks()[node];
      }
      made.row_start()[b + 1] = static_cast<int32_t>(row);
    }
  }
};

}  // namespace

namespace fledge {

int draft(const RoundModels& m, const CarriedState& c, const DraftTerms& t, const Drawing& draws, const Hooks& hooks,
          Drafts* out) {
  out->nodes = out->rows = 0;
  DraftArrays::lay_out(out, c.requests, t);
  DraftArrays made{*out, c.requests, t};
  Draft d{m, c, t, draws, hooks, made};
  if (int failed = d.begin()) return failed;
  while (d.goes_deeper())
    if (int failed = d.step()) return failed;
  out->levels = d.level;
  s.depths.assign(1, 0);
  for (int64_t level = 1; level <= d.level; ++level)
    s.depths.insert(s.depths.end(), level == 1 ? t.topk : t.topk * t.topk, level);
  for (int64_t n = 1; n <= t.lookup; ++n) s.depths.push_back(n);
  for (Growth& tree : s.trees) tree.add_proposal();
  d.share(static_cast<int64_t>(s.depths.size()) - 1);
  out->nodes = 1 + *std::max_element(made.counts(), made.counts() + c.requests);
  out->rows = c.requests + std::accumulate(made.counts(), made.counts() + c.requests, int64_t(0));
  DraftArrays::lay_out(out, c.requests, t);
  for (int64_t b = 0; b < c.requests; ++b)
    s.trees[b].select(s.depths.data(), made.counts()[b], out->nodes, made.tree(b));
  d.lay_out_rows(out);
  // Empty nodes have got their rows; the host counts those that hold a proposal.
  for (int64_t b = 0; b < c.requests; ++b) {
    const float* score = made.tree(b).log_probs + 1;
    made.counts()[b] = std::count_if(score, score + made.counts()[b], [](float one) { return one > -INFINITY; });
  }
  return 0;
}

}  // namespace fledge
