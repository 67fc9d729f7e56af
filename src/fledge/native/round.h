// A round in C++: what its one call takes and writes, and forwards of target and head over its rows.
//
//     fledge_round    grow a tree (draft.cpp), verify it, accept a path, let the head follow or remember for it
//
// A plain round is a tree of the root alone, a round of prompt lookup alone a tree without levels of the head. It does
// what TorchRound (engine/rounds/torch.py) does, bit for bit, where the tree has the same size. native/abi.py mirrors
// the structs.
#pragma once
#include <algorithm>
#include <chrono>
#include <vector>

#include "models.h"
#include "tree.h"

extern "C" {

struct RoundModels {
  const Decoder* target;
  const DraftHead* head;
  fledge::bf16 *head_kv, *kv;
  int64_t pages, last_position;
  int layers, kv_heads, head_dim;  // the target's
};

struct CarriedState {  // of B requests; as batch.py and drafters/eagle.py carry them
  int64_t requests, pages, topk, history_size;
  int32_t* length;
  int64_t* bonus;
  const int32_t *page_table, *head_start, *head_pages;
  int64_t* first_token_ids;
  float* first_log_probs;
  fledge::bf16* hidden;
  int32_t* history;
};

struct Drawing {         // how tokens are sampled; null pointers: greedily
  const float* filters;  // [B, 4]
  const int64_t* keys;   // [B]
};

struct DraftTerms {  // what bounds a draft; see `Terms`
  int64_t depth, topk, nodes, lookup, longest;
  const float* log_rates;     // [longest + 1]
  const bool* speculates;     // [B], null: all
  const double* calibration;  // by depth; null: the tree is grown to its bounds in any case
  const double* next;         // by depth: of a level's probability, what the next one keeps
  const int64_t* measured;    // [points] rows
  const double* costs;        // [points] tokens that their verify is worth,
  double step;                // and a draft step
  int64_t points;
};

// Where a draft's arrays lie, in bytes: of B requests, M proposed tokens, C candidates at most, N nodes, R rows of the
// verify. `DraftArrays::lay_out` has their sizes.
struct DraftOffsets {
  int64_t proposed, sources, matched, counts;   // int64 [B, M], [B, M], [B], [B] proposals in the tree
  int64_t rates, scores;                        // float [B, M] log probabilities of the proposed, [B, C]
  int64_t token_ids, parents, depths, masks, node_sources;  // int64 [B, N]
  int64_t log_probs;                            // float [B, N]
  int64_t picked, row_masks, first;             // int64 [R] which of all nodes are rows, [R], [B] each request's row
  int64_t row_start, tokens, positions;         // int32 [B + 1], [R], [R]
};

struct Drafts {  // what a draft leaves, in room for the largest one (`fledge_draft_room`)
  char* room;
  DraftOffsets at;
  int64_t levels, nodes, rows;
};

struct Recent {      // of B requests' latest positions, what a head that falls behind will need
  int64_t* tokens;   // [B, kept]; null: nothing is kept
  char* features;    // [B, kept, 3 * hidden] bf16
  int64_t kept;
};

struct Accepted {    // room for the deepest tree, filled end to end
  int64_t* emitted;  // [B, 1 + width], how many each request emits before them
  int64_t* path;     // [B, width]
  int64_t width;
  double draft, verify, accept;  // seconds
  fledge::bf16* states;  // [B, width, 4 * hidden], features and the lm_head's input along the paths; null: not wanted
};

// Callbacks into Python during a round. A non-zero return value aborts it.
//
// Between draft levels. Level 0: the proposals of prompt lookup are known, and the carried candidates [B, K] of the first
// level; they come back in order, best first. Then: the `children` [B * k, k] of the frontier, which has token `frontier`
// [B * k], node by node, below the nodes `parents` [B * k] of the frontier before.
using AllowHook = int (*)(int64_t level, const int64_t* frontier, const int64_t* parents, int64_t* children,
                          float* log_probs);
// The target over the R rows of the verify: writes what each chooses [R], and where their features [R, 3 * H] and their
// inputs to the lm_head [R, H] lie.
using VerifyHook = int (*)(int64_t* chosen, const fledge::bf16** features, const fledge::bf16** hidden);

struct Hooks {  // null: nothing
  AllowHook allow;
  VerifyHook verify;
};

int64_t fledge_draft_room(int64_t requests, const DraftTerms*);  // bytes that the largest draft needs
// Returns 0, or what a hook returned to end the round.
int fledge_round(const RoundModels*, const CarriedState*, const DraftTerms*, const Drawing*, const Recent*,
                 const Hooks*, Drafts*, Accepted*);

}  // extern "C"

namespace fledge {

constexpr int64_t kAhead = 2;                 // a head's row at position p proposes x[p + 2]
constexpr int64_t kHeadTemperaturePercent = 90;  // of the target's temperature, see draft/race.py
constexpr float kHeadTemperature = kHeadTemperaturePercent / 100.0f;

inline double seconds_since(std::chrono::steady_clock::time_point begun) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
}

// The arrays of `Drafts`.
struct DraftArrays {
  const Drafts& made;
  int64_t requests;  // B
  const DraftTerms& t;

  // Sets the offsets, as far as `nodes` and `rows` are known; returns the bytes of all. Arrays come in the order in
  // which their sizes become known, so that laying out again moves none that has been written.
  static int64_t lay_out(Drafts* d, int64_t requests, const DraftTerms& t) {
    int64_t end = 0, all_nodes = requests * d->nodes, copies = requests * t.lookup;
    auto next = [&end](int64_t* at, int64_t count, int64_t size) {
      *at = end;
      end += (count * size + 7) / 8 * 8;
    };
    DraftOffsets& at = d->at;
    next(&at.proposed, copies, 8);
    next(&at.sources, copies, 8);
    next(&at.matched, requests, 8);
    next(&at.counts, requests, 8);
    next(&at.rates, copies, 4);
    next(&at.scores, requests * candidates(t), 4);
    for (int64_t* part : {&at.token_ids, &at.parents, &at.depths, &at.masks, &at.node_sources})
      next(part, all_nodes, 8);
    next(&at.log_probs, all_nodes, 4);
    next(&at.picked, d->rows, 8);
    next(&at.row_masks, d->rows, 8);
    next(&at.first, requests, 8);
    next(&at.row_start, requests + 1, 4);
    next(&at.tokens, d->rows, 4);
    next(&at.positions, d->rows, 4);
    return end;
  }

  static int64_t candidates(const DraftTerms& t) {
    return (t.depth ? t.topk + (t.depth - 1) * t.topk * t.topk : 0) + t.lookup;
  }
  int64_t candidates() const { return candidates(t); }
  int64_t* proposed() const { return ids(made.at.proposed); }
  int64_t* sources() const { return ids(made.at.sources); }
  int64_t* matched() const { return ids(made.at.matched); }
  int64_t* counts() const { return ids(made.at.counts); }
  int64_t* token_ids() const { return ids(made.at.token_ids); }
  int64_t* parents() const { return ids(made.at.parents); }
  int64_t* depths() const { return ids(made.at.depths); }
  int64_t* masks() const { return ids(made.at.masks); }
  int64_t* node_sources() const { return ids(made.at.node_sources); }
  int64_t* picked() const { return ids(made.at.picked); }
  int64_t* row_masks() const { return ids(made.at.row_masks); }
  int64_t* first() const { return ids(made.at.first); }
  float* rates() const { return reinterpret_cast<float*>(made.room + made.at.rates); }
  float* scores() const { return reinterpret_cast<float*>(made.room + made.at.scores); }
  float* log_probs() const { return reinterpret_cast<float*>(made.room + made.at.log_probs); }
  int32_t* row_start() const { return small(made.at.row_start); }
  int32_t* tokens() const { return small(made.at.tokens); }
  int32_t* positions() const { return small(made.at.positions); }

  Nodes tree(int64_t request) const {
    int64_t at = request * made.nodes;
    return {token_ids() + at, parents() + at, depths() + at, masks() + at, node_sources() + at, log_probs() + at};
  }
  int64_t width() const {  // of their paths, at most
    int64_t most = made.nodes - 1;
    return std::max(std::min(made.levels, most), std::min(t.lookup, most)) + 1;
  }
  bool chains() const { return !made.levels || made.nodes == 1 || (t.topk == 1 && !std::min(t.lookup, made.nodes - 1)); }

 private:
  int64_t* ids(int64_t at) const { return reinterpret_cast<int64_t*>(made.room + at); }
  int32_t* small(int64_t at) const { return reinterpret_cast<int32_t*>(made.room + at); }
};

// Grows a tree for each request, and lays out the rows of their verify (draft.cpp). Returns as fledge_round.
int draft(const RoundModels&, const CarriedState&, const DraftTerms&, const Drawing&, const Hooks&, Drafts*);

struct TargetRows {  // of a forward of the target over the rows of all trees
  std::vector<int64_t> answers;  // [B, N], what nodes choose, -1 where none was verified
  const bf16* features;          // [R, 3 * hidden]
  const bf16* hidden;            // [R, hidden]

  void run(const RoundModels&, const CarriedState&, const Drawing&, const DraftArrays&, bool with_features,
           bool with_hidden);
  int ask(const Hooks&, const DraftArrays&);  // `verify` instead

 private:
  std::vector<bf16> held, held_hidden;
  std::vector<int32_t> positions, offset;
  std::vector<int64_t> coins, chosen;
  void spread(const DraftArrays&);  // what rows chose, over the trees' nodes
  std::vector<float> filters;
};

struct Paths {  // the accepted ones, and their rows in a verify
  std::vector<int64_t> emits, emitted;  // [B]; [B, width]
  std::vector<int32_t> row_start, positions, tokens;
  std::vector<int64_t> last, source, from, to;

  // Decided by what the trees' nodes chose; also written to `out`.
  void accept(const DraftArrays&, const std::vector<int64_t>& answers, Accepted* out);
  void lay_out(const CarriedState&, const DraftArrays&, const int64_t* path);
  int64_t rows() const { return static_cast<int64_t>(source.size()); }
};

struct HeadRows {  // of a forward of the head over rows of B requests
  std::vector<int32_t> tokens, positions, row_start, prefix, offset;
  std::vector<int64_t> coins;
  std::vector<float> filters;

  // Rows laid out by row_start, from window index `at` on: their tokens, at their positions.
  void run(const RoundModels& m, const CarriedState& c, int64_t rows, int64_t at, const int64_t* mask,
           const HeadOutputs& outputs);
  // How the rows' tokens will be sampled, `width` rows to a request: its filters, at the head's temperature, and coins
  // for tokens `at` positions.
  void sample(const Drawing& d, int64_t requests, int64_t width, const std::vector<int64_t>& at, HeadOutputs* out);
};

}  // namespace fledge
