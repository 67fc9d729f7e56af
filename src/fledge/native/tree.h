// Draft trees on the host: how one request's tree grows, what prompt lookup adds to it, which nodes become rows of a
// verify, and which path of them is accepted. The rounds (round.h) call these for one request after the other. The torch
// code of the engine (drafters/growth.py, merge.py, lookup.py, rounds/tree.py) says what they compute, bit for bit.
//
// Every node of the frontier, the `topk` best of the last level, gets `topk` children, and all of them stay candidates
// for the tree:
//
//     root  --  level 1: topk candidates  --  level 2: topk * topk candidates  --  ...  --  lookup's own
//
// Candidates are numbered in that order, the root being 0. A tree takes the best of them and renumbers them, parents
// before children. A mask is one 64-bit integer: bit n stands for node n, a node's own bit included.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "kv_pages.h"

namespace fledge {

constexpr float kNever = -std::numeric_limits<float>::infinity();  // log probability of what is not to be verified

constexpr int64_t kLookupSource = 1;  // who proposed a token: prompt lookup; see `Source` in drafters/proposal.py. 0: the head

// What a verify of `rows` rows costs, in tokens: linear between `points` measured ones and beyond the last two, where it
// never falls, and no less than at the first; as `CostCurve.at`.
inline double cost_of(const int64_t* measured, const double* costs, int64_t points, int64_t rows) {
  if (points == 1 || rows <= measured[0]) return costs[0];
  int64_t right = std::min(std::lower_bound(measured, measured + points, rows) - measured, points - 1);
  double slope = (costs[right] - costs[right - 1]) / double(measured[right] - measured[right - 1]);
  if (rows > measured[right] && slope < 0.0) return costs[right];
  return costs[right - 1] + slope * double(rows - measured[right - 1]);
}

struct Proposal {    // prompt lookup's, of one request
  int64_t* tokens;   // [count], -1 throughout where nothing repeats
  float* rates;      // [count], each one's log probability given those before it
  int64_t* sources;  // [count], whose each is
  int64_t count;

  // Looks for the end of history[0 .. last] earlier in it; `log_rates` [longest + 1] by the length of the match, tokens
  // proposed before it included. Returns that length; 0: there is none.
  int64_t find(const int32_t* history, int64_t last, const float* log_rates, int64_t longest) const;
};

struct Nodes {  // of one tree, [N] each, parents before children; see `DraftTree`
  int64_t *token_ids, *parents, *depths, *masks, *sources;
  float* log_probs;
};

struct Growth {  // one request's tree while it grows
  int64_t topk;
  int64_t *ids, *parents;  // [1 + C]
  float* scores;           // [C], cumulative log probabilities of candidates 1 .. C
  Proposal proposal;
  int64_t candidates = 0, level = 0;
  // How far the tree holds the proposal's tokens: `agreed` of them, of which the last is candidate `number`.
  int64_t agreed = 0, number = 0;
  float reached = 0;                   // that candidate's score
  std::vector<int64_t> frontier = {};  // [topk] tokens, best first,
  std::vector<float> best = {};        // their scores,
  std::vector<int64_t> masks = {};     // what they see of the draft window,
  std::vector<int64_t> numbers = {};   // which candidates they are,
  std::vector<int64_t> above = {};     // and their parents' places in the frontier before

  // The first level: `topk` candidates, best first.
  void begin(const int64_t* tokens, const float* log_probs);
  // The frontier's children [topk * topk] with their log probabilities are the next level.
  void add(const int64_t* children, const float* log_probs);
  // The best candidates of the last level become the frontier.
  void descend();
  // The part of the proposal that is no candidate yet.
  void add_proposal();
  // The probability that the frontier's children share, less that of lookup's next token, which is a candidate already.
  float open_mass() const;
  // The tree of the root and the best `wanted` candidates, of `depths` [1 + C]; nodes left over are empty.
  void select(const int64_t* depths, int64_t wanted, int64_t nodes, const Nodes& out) const;

 private:
  void take(const int64_t* tokens, const float* log_probs, int64_t count);
  void merge(int64_t first, int64_t count);
};

// How many nodes below the root each of B requests gets, at most `most`: as many of the most probable candidates of all
// requests as bring more tokens than the verify's time is worth. scores [B, C]; `calibration` [by depth] multiplies
// probabilities, null: 1; depths [C]; `costs` [points] of `measured` [points] rows.
void share_out(const float* scores, const float* calibration, const int64_t* depths, const int64_t* measured,
               const double* costs, int64_t points, int64_t requests, int64_t candidates, int64_t most, int64_t* counts);

// Walks down the tree as long as a node is what its parent chose. Returns how many tokens are emitted, the bonus token
// included. path [width] and emitted [width] hold valid nodes and tokens beyond them, too.
int64_t accept_path(const Nodes&, const int64_t* chosen, int64_t nodes, bool speculates, int64_t width, int64_t* path,
                    int64_t* emitted);

// See `coins` in sampling.py.
int64_t coin(int64_t key, int64_t position);

}  // namespace fledge
