// What the calls of a round share: the models, what requests carry, and forwards of target and head.
#pragma once
#include <algorithm>
#include <vector>

#include "models.h"
#include "tree_calls.h"

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

struct Drawing {  // how tokens are going to be drawn; null pointers: greedily
  const float* filters;  // [B, 4]
  const int64_t* keys;   // [B]
};

struct DraftTerms {
  int64_t depth, topk, nodes, lookup, longest;
  const float* log_rates;       // [longest + 1]
  const bool* speculates;       // [B], null: all
  const double* calibration;    // by depth; null: the tree is grown to its bounds, whatever it promises
  const double* next;           // by depth: of a level's probability, what the next one keeps
  const int64_t* known;         // [points] rows
  const double* costs;          // [points] tokens that their verify is worth,
  double step;                  // and a draft step
  int64_t points;
};

struct Drafts {  // M proposed tokens, C candidates, N nodes; room for the largest, filled end to end
  int64_t* integers;  // proposed [B, M], matched [B], counts [B], the tree [4, B, N], picked [R], masks [R], first [B]
  float* floats;      // proposals' rates [B, M], scores [B, C], the tree's [B, N]
  int32_t* smalls;    // row_start [B + 1], tokens [R], positions [R]
  int64_t levels, nodes, rows;
  double seconds;  // of the draft steps
};

struct Recent {  // what a head that falls behind will need of B requests' latest positions; see `RunningBatch.fall_behind`
  int64_t* tokens;  // [B, kept]; null: nothing is kept
  char* features;   // [B, kept, 3 * hidden] bf16
  int64_t kept;
};

struct Accepted {  // room for the deepest tree, filled end to end
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

struct Drafted {  // trees of N nodes for each of B requests, R of which are verified
  const int64_t *token_ids, *parents, *depths;  // [B, N]
  const int64_t *picked, *masks, *first;        // [R], which of all nodes; [R], null: chains; [B]
  const int32_t *row_start, *tokens, *positions;
  const bool* speculates;  // [B], null: all
  int64_t nodes, rows, width;
};

// Which of the trees' nodes are verified, `counts` [B] and the root of each request: what of `made` is behind the
// trees.
void lay_out(const CarriedState&, int64_t* counts, Drafts* made);

// `made` as it lies. Paths have at most `width` nodes; `chain`: no node has two children.
inline Drafted drafted(const Drafts& made, int64_t requests, const DraftTerms& t, int64_t width, bool chain) {
  int64_t all = requests * made.nodes, rows = made.rows;
  const int64_t *tree = made.integers + requests * (t.lookup + 2), *picked = tree + 4 * all;
  const int32_t *row_start = made.smalls, *tokens = row_start + requests + 1;
  return {tree, tree + all, tree + 2 * all, picked, chain ? nullptr : picked + rows, picked + 2 * rows,
          row_start, tokens, tokens + rows, t.speculates, made.nodes, rows, width};
}

struct TargetRows {  // of a forward of the target over the rows of all trees
  std::vector<int64_t> answers;  // [B, N], what nodes choose, -1 where none was verified
  std::vector<bf16> features;    // [R, 3 * hidden]

  void run(const RoundModels&, const CarriedState&, const Drawing&, const Drafted&, bool with_features = true);

 private:
  std::vector<int32_t> positions, offset;
  std::vector<int64_t> keys, after, tossed, chosen;
  std::vector<float> temperature;
};

struct Paths {  // the accepted ones, and their rows in a verify
  std::vector<int64_t> emits, emitted;  // [B]; [B, width]
  std::vector<int32_t> row_start, positions, tokens;
  std::vector<int64_t> last, source, from, to;

  // What the trees' nodes chose decides; also in `out`.
  void accept(const CarriedState&, const Drafted&, const std::vector<int64_t>& answers, Accepted* out);
  void lay_out(const CarriedState&, const int64_t* emits, const int64_t* path, const int64_t* emitted,
               const int64_t* first_row, int64_t width);
  int64_t rows() const { return static_cast<int64_t>(source.size()); }
};

void finish(const RoundModels&, const CarriedState&, const Drawing&, const Drafted&, Accepted*);

struct HeadRows {  // of a forward of the head over rows of B requests
  std::vector<int32_t> tokens, positions, row_start, prefix, offset;
  std::vector<int64_t> keys, coins;
  std::vector<float> filters;

  // Rows laid out by row_start, from window index `at` on: their tokens, at their positions.
  void run(const RoundModels& m, const CarriedState& c, int64_t rows, int64_t at, const int64_t* mask,
           const HeadOutputs& outputs) {
    prefix.resize(c.requests);
    for (int64_t b = 0; b < c.requests; ++b) prefix[b] = c.length[b] - c.head_start[b];
    offset.assign(c.requests, static_cast<int32_t>(at));
    int64_t sizes[3] = {rows, c.requests, c.pages};
    const int* tensors[6] = {tokens.data(), positions.data(), row_start.data(),
                             prefix.data(), offset.data(),    c.head_pages};
    fledge_head_forward(m.head, sizes, tensors, reinterpret_cast<const uint64_t*>(mask), m.head_kv, m.pages, &outputs);
  }

  // Every request's filters and key once for each of its `width` rows, and the rows' coins, for tokens `at` positions.
  void toss(const Drawing& d, int64_t requests, int64_t width, const std::vector<int64_t>& at, HeadOutputs* out) {
    if (!d.filters) return;
    filters.resize(requests * width * 4);
    keys.resize(requests * width);
    coins.resize(requests * width);
    for (int64_t r = 0; r < requests * width; ++r) {
      std::copy_n(d.filters + r / width * 4, 4, &filters[r * 4]);
      keys[r] = d.keys[r / width];
    }
    fledge_coins(keys.data(), at.data(), coins.data(), requests * width);
    out->filters = filters.data();
    out->coins = coins.data();
  }
};

}  // namespace fledge
