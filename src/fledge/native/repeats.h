// Prompt lookup: where the end of a context occurred before, what followed it there, and how a draft tree takes that in.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

namespace fledge {

// Of tokens history[0 .. last]: the length (at most `longest`) of the longest earlier run that equals the end, and in
// `proposed` the `count` tokens after its latest occurrence; one that runs into the end goes on in circles. 0: none, and
// nothing is written.
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

// The place of the child of candidate `number` that is `token`; -1: there is none.
inline int64_t find_child(const Level& level, int64_t number, int64_t token) {
  for (int64_t n = 0; n < level.count; ++n)
    if (level.token_ids[n] == token && level.below(n, number)) return n;
  return -1;
}

// `raised` [count]: the scores, the one at `hit` (if any) set to `score`, its siblings' moved by `others`.
inline void raise_scores(const Level& level, int64_t number, int64_t hit, float score, float others, float* raised) {
  for (int64_t n = 0; n < level.count; ++n) {
    float moved = level.scores[n] + (level.below(n, number) ? others : 0.0f);
    raised[n] = n == hit ? score : moved;
  }
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
