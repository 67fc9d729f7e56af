// A round in C++: what its calls take and write, and forwards of target and head over its rows.
//
// fledge_round (round.cpp) is a whole speculative round, draft -> verify -> accept -> extend, of which fledge_draft
// (draft.cpp) and fledge_extend are calls of their own, too; headless.cpp has rounds without the head. They do what the
// functions they name in engine/round.py do, bit for bit. native/abi.py mirrors the structs.
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

struct CarriedState {  // of B requests; see `Carried`
  int64_t requests, pages, topk, known;
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
  const int64_t* known;       // [points] rows
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

struct Recent {      // of B requests' latest positions, what a head that falls behind will need; see `fledge_keep`
  int64_t* tokens;   // [B, kept]; null: nothing is kept
  char* features;    // [B, kept, 3 * hidden] bf16
  int64_t kept;
};

struct Accepted {    // room for the deepest tree, filled end to end
  int64_t* emitted;  // [B, 1 + width], how many each request emits before them
  int64_t* path;     // [B, width]
  int64_t width;
  double draft, verify, accept;  // seconds
};

void fledge_draft(const RoundModels*, const CarriedState*, const DraftTerms*, const Drawing*, Drafts*);
void fledge_extend(const RoundModels*, const CarriedState*, const Drawing*, const int64_t* emits, const int64_t* path,
                   const int64_t* emitted, const int64_t* first_row, const fledge::bf16* features, int64_t width,
                   int64_t move);

}  // extern "C"

namespace fledge {

constexpr int64_t kAhead = 2;  // a head's row at position p proposes x[p + 2]
constexpr float kHeadTemperature = 0.9f;  // see `HEAD_TEMPERATURE` in draft/race.py

inline double seconds_since(std::chrono::steady_clock::time_point begun) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
}

// Where the arrays of `Drafts` lie, each right behind the one before it: B requests, M proposed tokens, C candidates,
// N nodes, R rows of the verify. So nodes and rows have to be set before what lies behind arrays of their size is
// asked for.
//
//     integers    proposed [B, M], matched [B], counts [B], token_ids, parents, depths and masks of the trees [B, N],
//                 picked [R], row_masks [R], first [B]
//     floats      rates [B, M], scores [B, C], log_probs [B, N]
//     smalls      row_start [B + 1], tokens [R], positions [R]
struct DraftArrays {
  const Drafts& made;
  int64_t requests, lookup;  // B, M

  int64_t* proposed() const { return made.integers; }
  int64_t* matched() const { return proposed() + requests * lookup; }
  int64_t* counts() const { return matched() + requests; }  // of nodes below the root
  int64_t* token_ids() const { return counts() + requests; }
  int64_t* parents() const { return token_ids() + all_nodes(); }
  int64_t* depths() const { return parents() + all_nodes(); }
  int64_t* masks() const { return depths() + all_nodes(); }
  int64_t* picked() const { return masks() + all_nodes(); }  // which of all nodes are rows
  int64_t* row_masks() const { return picked() + made.rows; }
  int64_t* first() const { return row_masks() + made.rows; }  // row of each request

  float* rates() const { return made.floats; }  // log probabilities of the proposed
  float* scores() const { return rates() + requests * lookup; }
  float* log_probs(int64_t candidates) const { return scores() + requests * candidates; }

  int32_t* row_start() const { return made.smalls; }
  int32_t* tokens() const { return row_start() + requests + 1; }
  int32_t* positions() const { return tokens() + made.rows; }

 private:
  int64_t all_nodes() const { return requests * made.nodes; }
};

struct Trees {                                  // of N nodes for each of B requests, R of which are verified
  const int64_t *token_ids, *parents, *depths;  // [B, N]
  const int64_t *picked, *masks, *first;        // [R], which of all nodes; [R], null: chains; [B]
  const int32_t *row_start, *tokens, *positions;
  const bool* speculates;      // [B], null: all
  int64_t nodes, rows, width;  // width: of their paths, at most
};

// The trees of a draft. `chains`: no node has two children.
inline Trees trees_of(const DraftArrays& a, const DraftTerms& t, int64_t width, bool chains) {
  return {a.token_ids(), a.parents(), a.depths(), a.picked(), chains ? nullptr : a.row_masks(), a.first(),
          a.row_start(), a.tokens(), a.positions(), t.speculates, a.made.nodes, a.made.rows, width};
}

// How many nodes below the root each request gets: counts [B] by the candidates' scores [B, C], depths [C]. Null
// depths: probabilities aren't calibrated.
void share_out(const CarriedState&, const DraftTerms&, const float* scores, const int64_t* depths, int64_t candidates,
               int64_t* counts);

// Lays out the rows of the verify: each request's root, and `counts` nodes below it. Sets `made`'s rows.
void lay_out_verify(const CarriedState&, const DraftTerms&, Drafts* made);

struct TargetRows {  // of a forward of the target over the rows of all trees
  std::vector<int64_t> answers;  // [B, N], what nodes choose, -1 where none was verified
  std::vector<bf16> features;    // [R, 3 * hidden]

  void run(const RoundModels&, const CarriedState&, const Drawing&, const Trees&, bool with_features = true);

 private:
  std::vector<int32_t> positions, offset;
  std::vector<int64_t> keys, after, coins, chosen;
  std::vector<float> filters;
};

struct Paths {  // the accepted ones, and their rows in a verify
  std::vector<int64_t> emits, emitted;  // [B]; [B, width]
  std::vector<int32_t> row_start, positions, tokens;
  std::vector<int64_t> last, source, from, to;

  // Decided by what the trees' nodes chose; also written to `out`.
  void accept(const CarriedState&, const Trees&, const std::vector<int64_t>& answers, Accepted* out);
  void lay_out(const CarriedState&, const int64_t* emits, const int64_t* path, const int64_t* emitted,
               const int64_t* first_row, int64_t width);
  int64_t rows() const { return static_cast<int64_t>(source.size()); }
};

struct HeadRows {  // of a forward of the head over rows of B requests
  std::vector<int32_t> tokens, positions, row_start, prefix, offset;
  std::vector<int64_t> keys, coins;
  std::vector<float> filters;

  // Rows laid out by row_start, from window index `at` on: their tokens, at their positions.
  void run(const RoundModels& m, const CarriedState& c, int64_t rows, int64_t at, const int64_t* mask,
           const HeadOutputs& outputs);
  // How the rows' tokens will be sampled, `width` rows to a request: its filters, at the head's temperature, and coins
  // for tokens `at` positions.
  void sample(const Drawing& d, int64_t requests, int64_t width, const std::vector<int64_t>& at, HeadOutputs* out);
};

}  // namespace fledge
