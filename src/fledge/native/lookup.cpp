// Prompt lookup: where the end of a context occurred before, what followed it there, and how a draft tree takes that
// in (see drafters/merge.py).
#include <cmath>

#include "tree.h"

namespace fledge {
namespace {

// log(1 - p) of a log probability, at least log(1/1000).
float log_rest(float log_prob) {
  return static_cast<float>(std::log1p(-std::min(std::exp(static_cast<double>(log_prob)), 0.999)));
}

}  // namespace

int64_t Proposal::find(const int32_t* history, int64_t last, const float* log_rates, int64_t longest) const {
  int64_t matched = 0, end = -1;  // the latest of the longest matches ends here
  for (int64_t place = last - 1; place >= 0 && matched < longest; --place) {
    int64_t length = 0;
    while (length < longest && length <= place && history[place - length] == history[last - length]) ++length;
    if (length > matched) {
      matched = length;
      end = place;
    }
  }
  for (int64_t n = 0; n < count; ++n) {
    tokens[n] = matched ? history[end + 1 + n % (last - end)] : -1;  // what reaches the end repeats
    sources[n] = kLookupSource;
    rates[n] = log_rates[matched ? std::min(matched + n, longest) : 0];
  }
  return matched;
}

// Combines the head's scores of the last level, `count` candidates from number `first` on, with the proposal's opinion.
void Growth::merge(int64_t first, int64_t count) {
  int64_t token = proposal.tokens[level - 1], hit = -1;
  float rate = proposal.rates[level - 1];
  auto below = [&](int64_t n) { return parents[first + n] == number; };
  for (int64_t n = 0; n < count && hit < 0; ++n)
    if (ids[first + n] == token && below(n)) hit = n;
  float head = hit < 0 ? kNever : scores[first - 1 + hit] - reached;  // the head's own opinion
  float others = std::min(log_rest(rate) - log_rest(head), 0.0f);
  for (int64_t n = 0; n < count; ++n)
    if (below(n)) scores[first - 1 + n] += others;
  if (hit < 0) return;
  reached += std::max(rate, head);
  agreed = level;
  number = first + hit;
  scores[first - 1 + hit] = reached;
}

void Growth::add_proposal() {
  double sum = 0.0;
  int64_t first = 1 + candidates;
  for (int64_t n = 0; n < proposal.count; ++n) {
    bool empty = n < agreed || proposal.tokens[n] < 0;
    if (!empty) sum += proposal.rates[n];
    ids[first + n] = empty ? -1 : proposal.tokens[n];
    scores[first - 1 + n] = empty ? kNever : reached + static_cast<float>(sum);
    parents[first + n] = empty ? 0 : n == agreed ? number : first + n - 1;
  }
  candidates += proposal.count;
}

}  // namespace fledge
