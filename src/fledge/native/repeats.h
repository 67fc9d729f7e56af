// Prompt lookup: where the end of a context occurred before, and what followed it there.
#pragma once

#include <cstdint>

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

}  // namespace fledge
