// Prompt lookup: where the end of a context occurred before, what followed it there, and how a draft tree takes that
// in.
#include <cmath>

#include "tree.h"

using namespace fledge;

namespace {

// Finds the longest run of tokens, at most `longest`, at the end of history[0 .. last] that occurred before. Returns
// its length, and in `proposed` the `count` tokens after its latest occurrence; where these reach the end they
// repeat. 0: there is none, and nothing is written.
int64_t find_repeat(const int32_t* history, int64_t last, int64_t longest, int64_t count, int64_t* proposed) {
  int64_t best = 0, end = -1;
  for (int64_t place = last - 1; place >= 0 && best < longest; --place) {
    int64_t length = 0;
    while (length < longest && length <= place && history[place - length] == history[last - length]) ++length;
    if (length > best) {
      best = length;
      end = place;
    }
  }
  for (int64_t n = 0; best && n < count; ++n) proposed[n] = history[end + 1 + n % (last - end)];
  return best;
}

struct Level {  // the candidates of one level of one request's tree, [count]
  const int64_t* token_ids;
  const float* scores;
  const int64_t* parents;  // [count / topk] candidate numbers; null: all are the root's children
  int64_t count, topk;

  bool below(int64_t candidate, int64_t number) const { return !parents || parents[candidate / topk] == number; }
};

// How far a tree holds the proposal's tokens: `agreed` of them, of which the last is candidate `number` with `score`.
struct Agreement {
  int64_t *agreed, *number;
  float* score;
};

// log(1 - p) of a log probability, at least log(1/1000).
float log_rest(float log_prob) {
  return static_cast<float>(std::log1p(-std::min(std::exp(static_cast<double>(log_prob)), 0.999)));
}

// Combines the head's scores of the level at `depth` with the proposal's opinion, and updates the agreement. `token`
// is the proposal's there, with log probability `rate` given those before it; the candidates are numbered from
// `first` on.
void raise_scores(const Level& level, int64_t depth, int64_t first, int64_t token, float rate, Agreement with,
                  float* raised) {
  int64_t parent = *with.number, hit = -1;
  for (int64_t n = 0; n < level.count && hit < 0; ++n)
    if (level.token_ids[n] == token && level.below(n, parent)) hit = n;
  float head = hit < 0 ? kNever : level.scores[hit] - *with.score;  // the head's own opinion
  float others = std::min(log_rest(rate) - log_rest(head), 0.0f);
  for (int64_t n = 0; n < level.count; ++n)
    raised[n] = level.scores[n] + (level.below(n, parent) ? others : 0.0f);
  if (hit < 0) return;
  *with.score += std::max(rate, head);
  *with.agreed = depth;
  *with.number = first + hit;
  raised[hit] = *with.score;
}

// The part [count] of a proposal that is no candidate yet: beyond `agreed` tokens, of which the last is candidate
// `number` with `score`. They are numbered behind the head's `candidates`. Slots for tokens that are candidates, or
// that the proposal lacks, stay empty.
void fill_slots(const int64_t* proposed, const float* rates, int64_t count, int64_t agreed, int64_t number,
                float score, int64_t candidates, int64_t* token_ids, float* scores, int64_t* parents) {
  double sum = 0.0;
  for (int64_t n = 0; n < count; ++n) {
    bool empty = n < agreed || proposed[n] < 0;
    if (!empty) sum += rates[n];
    token_ids[n] = empty ? -1 : proposed[n];
    scores[n] = empty ? kNever : score + static_cast<float>(sum);
    parents[n] = empty ? 0 : n == agreed ? number : candidates + n;
  }
}

}  // namespace

extern "C" {

// See `lookup.find`: proposals of `count` tokens for each request. A token's log probability is that of `log_rates`
// [longest + 1] for the length of the match, tokens proposed before it included.
void fledge_find_repeats(const int32_t* history, const int32_t* last, const float* log_rates, int64_t* matched,
                         int64_t* proposed, float* log_probs, int64_t requests, int64_t known, int64_t longest,
                         int64_t count) {
  for (int64_t b = 0; b < requests; ++b) {
    int64_t* tokens = proposed + b * count;
    std::fill(tokens, tokens + count, -1);
    matched[b] = find_repeat(history + b * known, last[b], longest, count, tokens);
    for (int64_t n = 0; n < count; ++n)
      log_probs[b * count + n] = log_rates[matched[b] ? std::min(matched[b] + n, longest) : 0];
  }
}

// See `ProposalMerge.raised`.
void fledge_raise(const int64_t* tokens, const float* scores, const int64_t* parents, const int64_t* proposed,
                  const float* rates, int64_t* agreed, int64_t* number, float* score, float* raised, int64_t requests,
                  int64_t candidates, int64_t topk, int64_t count, int64_t level, int64_t first) {
  for (int64_t b = 0; b < requests; ++b) {
    int64_t at = b * candidates, next = b * count + level - 1;
    Level found{tokens + at, scores + at, parents ? parents + b * (candidates / topk) : nullptr, candidates, topk};
    raise_scores(found, level, first, proposed[next], rates[next], Agreement{agreed + b, number + b, score + b},
                 raised + at);
  }
}

// See `ProposalMerge.slots`.
void fledge_fill_slots(const int64_t* proposed, const float* rates, const int64_t* agreed, const int64_t* number,
                       const float* score, int64_t* token_ids, float* scores, int64_t* parents, int64_t requests,
                       int64_t count, int64_t candidates) {
  for (int64_t b = 0; b < requests; ++b) {
    int64_t at = b * count;
    fill_slots(proposed + at, rates + at, count, agreed[b], number[b], score[b], candidates, token_ids + at,
               scores + at, parents + at);
  }
}

}  // extern "C"
