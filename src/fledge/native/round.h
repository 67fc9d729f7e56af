// A round in C++: what its one call takes and writes, and forwards of target and head over its rows.
//
//     fledge_round    grow a tree (draft.cpp), verify it, accept a path, let the head follow or remember for it
//
// A plain round is a tree of the root alone, a round of prompt lookup alone a tree without levels of the head. It does
// what TorchRounds (engine/rounds/torch.py) does, bit for bit, where the tree has the same size. native/abi.py mirrors
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
  const double* calibration;  // by depth; null: the tree is grown to its bounds, whatever it promises
  const double* next;         // by depth: of a level's probability, what the next one keeps
  const int64_t* measured;    // [points] rows
  const double* costs;        // [points] tokens that their verify is worth,
  double step;                // and a draft step
  int64_t points;
};

struct Drafts {  // what a draft leaves, in room for the largest one; see `DraftArrays`
  int64_t* integers;
  float* floats;
  int32_t* smalls;
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

// What Python does in the midst of a round. All but 0 returned ends the round there.
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

// Returns 0, or what a hook returned to end the round.
int fledge_round(const RoundModels*, const CarriedState*, const DraftTerms*, const Drawing*, const Recent*,
                 const Hooks*, Drafts*, Accepted*);

}  // extern "C"

namespace fledge {

constexpr int64_t kAhead = 2;  // a head's row at position p proposes x[p + 2]
constexpr float kHeadTemperature = 0.9f;  // see `HEAD_TEMPERATURE` in draft/race.py

inline double seconds_since(std::chrono::steady_clock::time_point begun) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
}

// Where the arrays of `Drafts` lie, each right behind the one before it: B requests, M proposed tokens, C candidates at
// most, N nodes, R rows of the verify. So nodes and rows have to be set before what lies behind arrays of their size is
// asked for.
//
//     integers    proposed [B, M], matched [B], counts [B], token_ids, parents, depths and masks of the trees [B, N],
//                 picked [R], row_masks [R], first [B]
//     floats      rates [B, M], scores [B, C], log_probs [B, N]
//     smalls      row_start [B + 1], tokens [R], positions [R]
struct DraftArrays {
  const Drafts& made;
  int64_t requests;  // B
  const DraftTerms& t;

  int64_t candidates() const { return (t.depth ? t.topk + (t.depth - 1) * t.topk * t.topk : 0) + t.lookup; }
  int64_t* proposed() const { return made.integers; }
  int64_t* matched() const { return proposed() + requests * t.lookup; }
  int64_t* counts() const { return matched() + requests; }  // of nodes below the root
  int64_t* token_ids() const { return counts() + requests; }
  int64_t* parents() const { return token_ids() + all_nodes(); }
  int64_t* depths() const { return parents() + all_nodes(); }
  int64_t* masks() const { return depths() + all_nodes(); }
  int64_t* picked() const { return masks() + all_nodes(); }  // which of all nodes are rows
  int64_t* row_masks() const { return picked() + made.rows; }
  int64_t* first() const { return row_masks() + made.rows; }  // row of each request

  float* rates() const { return made.floats; }  // log probabilities of the proposed
  float* scores() const { return rates() + requests * t.lookup; }
  float* log_probs() const { return scores() + requests * candidates(); }

  int32_t* row_start() const { return made.smalls; }
  int32_t* tokens() const { return row_start() + requests + 1; }
  int32_t* positions() const { return tokens() + made.rows; }

  Nodes tree(int64_t request) const {
    int64_t at = request * made.nodes;
    return {token_ids() + at, parents() + at, depths() + at, masks() + at, log_probs() + at};
  }
  int64_t width() const {  // of their paths, at most
    int64_t most = made.nodes - 1;
    return std::max(std::min(made.levels, most), std::min(t.lookup, most)) + 1;
  }
  bool chains() const { return !made.levels || made.nodes == 1 || (t.topk == 1 && !std::min(t.lookup, made.nodes - 1)); }

 private:
  int64_t all_nodes() const { return requests * made.nodes; }
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
