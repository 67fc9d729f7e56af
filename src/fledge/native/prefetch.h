// Asking for weights before they are needed.
#pragma once
#include <immintrin.h>

namespace fledge {

// Asks for what is multiplied soon, a little with every multiplication: a burst would fill the queue of misses and hold
// up the loads behind it. Into L2.
struct Ahead {
  const char* next = nullptr;
  int bytes = 0;  // per pair of k, a multiple of 64; 0: nothing to ask for
  const char* end = nullptr;  // for `pass_done`
  void ask(int pairs = 1) {
    for (int at = 0; at < bytes * pairs; at += 64) _mm_prefetch(next + at, _MM_HINT_T1);
    next += bytes * pairs;
  }
  // What each of several passes over the same `pairs` asks for, until there is nothing left to ask for.
  Ahead shared_by(int passes, int pairs) const {
    return {next, (bytes / passes + 63) / 64 * 64, next + static_cast<size_t>(pairs) * bytes};
  }
  void pass_done() {
    if (next >= end) bytes = 0;
  }
};

// Weights that stream by are asked for so many bytes before they are needed: far enough for memory to answer, near enough
// to be in step with the prefetcher of the processor.
constexpr int kAheadBytes = 12288;

inline Ahead stream_ahead(const void* weights, int bytes_per_pair) {
  return {static_cast<const char*>(weights) + kAheadBytes, bytes_per_pair};
}

}  // namespace fledge
