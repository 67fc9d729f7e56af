// Prompt lookup: where the end of a context occurred before, what followed it there, and how a draft tree takes that
// in.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace fledge {

// Of tokens history[0 .. last]: the length (at most `longest`) of the longest earlier run that equals the end, and in
// `proposed` the `count` tokens after its latest occurrence; one that runs into the end goes on in circles. 0: none,
// and nothing is written.
inline int64_t find_repeat(const int32_t* history, int64_t last, int64_t longest, int64_t count, int64_t* proposed) {
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

constexpr float kNever = -std::numeric_limits<float>::infinity();

struct Level {  // a draft level's candidates for one request, [count]
  const int64_t* token_ids;
  const float* scores;
  const int64_t* parents;  // [count / topk] candidate numbers, null: all are the root's children
  int64_t count, topk;

  bool below(int64_t candidate, int64_t number) const { return !parents || parents[candidate / topk] == number; }
};

// How far a tree and a proposal go together: `agreed` tokens, of which the last is candidate `number` with `score`.
struct Agreement {
  int64_t *agreed, *number;
  float* score;
};

// log(1 - p) of a log probability, at least log(1/1000).
inline float log_rest(float log_prob) {
  return static_cast<float>(std::log1p(-std::min(std::exp(static_cast<double>(log_prob)), 0.999)));
}

// Draft level `depth`'s scores with the proposal's opinion, and how far they go together now. `token` is the proposal's
// there, with log probability `rate` given those before it; the candidates are numbered from `first` on.
inline void raise_scores(const Level& level, int64_t depth, int64_t first, int64_t token, float rate, Agreement with,
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

// The part [count] of a proposal that the head's `candidates` candidates lack: beyond `agreed` tokens, of which the
// last is candidate `number` with `score`. What isn't lacking, or isn't there, is an empty slot.
inline void fill_slots(const int64_t* proposed, const float* rates, int64_t count, int64_t agreed, int64_t number,
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

}  // namespace fledge
