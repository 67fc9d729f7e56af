// Software prefetch of weights, across the products of a forward.
//
// A thread reads its share of every product's weights, product after product: one stream, known before the forward
// starts. It prefetches that stream a fixed distance ahead of the panel it multiplies, so that the first weights of a
// product are on their way while the last ones of the product before are multiplied:
//
//     a thread's stream    [ share of qkv | share of o | share of gate_up | share of down | ... ]
//                                    ^ multiplied now      ^ prefetched now, `distance` bytes further on
//
// A WeightStream says which bytes are due during one panel, and hands them to the panel's product as a Prefetch. The
// product issues them a few cache lines at a time, between its multiplications.
//
// Weights of more than an L3 cache holds, a target's, are gone from it when the next forward wants them. What they push
// out is wanted sooner: the draft head's weights, keys and values, Python. So where `kPassing` says that a processor
// can, such lines are prefetched as non-temporal ones, which an AMD Zen drops when they leave the L2 cache.
#pragma once
#include <fstream>
#include <vector>

namespace fledge {

constexpr int kLine = 64;              // bytes of a cache line
constexpr long kPrefetchUnit = 1024;  // bytes that a product of bf16 prefetches at once

// Bytes of the L3 cache that the first core has a part in; 32 MiB where the system doesn't say. (An AMD processor has
// several such caches, and sysconf their sum.)
inline long l3_bytes() {
  static const long known = [] {
    long kilobytes = 0;
    std::ifstream("/sys/devices/system/cpu/cpu0/cache/index3/size") >> kilobytes;
    return kilobytes > 0 ? kilobytes << 10 : 32L << 20;
  }();
  return known;
}

// Into the L2 cache; or, for a line that won't stay until it is wanted again, beside it where a processor can.
[[gnu::always_inline]] inline void prefetch_to_l2(const char* line) { __builtin_prefetch(line, 0, 2); }
[[gnu::always_inline]] inline void prefetch_passing(const char* line) { __builtin_prefetch(line, 0, 0); }

// Some lines to prefetch; `at` is null: none.
struct Lines {
  const char* at = nullptr;
  bool passing = false;  // they won't stay until they are wanted again
};

// What to prefetch while one panel is multiplied. It is spread evenly over the multiplications, because a burst would
// fill the processor's queue of misses and hold up the loads behind it. Inlined everywhere: a call in the middle of a
// product would spill its accumulators to memory.
struct Prefetch {
  const char *at = nullptr, *end = nullptr, *then = nullptr;  // up to `end`, and from `then` on after that
  long left = 0;                                              // bytes
  bool passing = false;

  // The next `bytes` bytes, or a few more; none when all are taken.
  [[gnu::always_inline]] Lines next(long bytes) {
    if (left <= 0) return {};
    if (at >= end && then) at = then, end = then + left;
    left -= bytes;
    at += bytes;
    return {at - bytes, passing};
  }
};

// Prefetches `count` of these lines, from line `first` on.
[[gnu::always_inline]] inline void prefetch_lines(Lines lines, int first, int count) {
  if (lines.at == nullptr) return;
  for (int i = first; i < first + count; ++i) {
    if (lines.passing) prefetch_passing(lines.at + i * kLine);
    else prefetch_to_l2(lines.at + i * kLine);
  }
}

// More rows than fit the registers pass over a panel as several groups of nearly equal size, one after the other. Each
// group issues every `count`th unit of the panel's Prefetch.
struct RowGroup {
  int index, count;
  int rows(int left) const { return (left + count - index - 1) / (count - index); }  // in this group, of `left` rows
  [[gnu::always_inline]] bool prefetches(int step) const { return count == 1 || step % count == index; }
};

// One thread's stream of a forward: where it lies in memory, and how much of it is prefetched already.
class WeightStream {
 public:
  // `distance`: bytes to stay ahead. `passing`: see `Lines`.
  void clear(long distance, bool passing) {
    distance_ = distance;
    passing_ = passing;
    shares_.clear();
    total_ = prefetched_ = 0;
    current_ = reached_ = 0;
  }
  // The thread's share of the next product.
  void add(const char* begin, long bytes) {
    shares_.push_back({begin, bytes, total_});
    total_ += bytes;
  }
  // Prefetches the beginning of the stream.
  void start() {
    for (long at = 0; at < distance_ && at < total_; at += kLine) {
      prefetch_lines({position(), passing_}, 0, 1);
      advance(kLine);
    }
  }
  long distance() const { return distance_; }
  bool passing() const { return passing_; }

  // A product begins; false if it isn't the one that the stream has next.
  bool begin_product(const char* share) { return current_ < shares_.size() && shares_[current_].begin == share; }
  void end_product() { ++current_; }

  // What to prefetch while a panel of the running product is read.
  Prefetch take(const char* panel, long bytes) {
    const Share& share = shares_[current_];
    long at = panel - share.begin;
    if (at < 0 || at >= share.bytes) at = share.bytes;  // stolen from another thread: the own share has been read
    long due = share.from + at + distance_, until = due + bytes < total_ ? due + bytes : total_;
    if (prefetched_ < due) seek(current_, at + distance_);  // too late for what lies in between: it is skipped
    long wanted = until - prefetched_;
    if (wanted <= 0) return {};
    Prefetch prefetch{position(), shares_[reached_].begin + shares_[reached_].bytes, nullptr, wanted, passing_};
    advance(wanted);
    if (reached_ < shares_.size()) prefetch.then = shares_[reached_].begin;
    return prefetch;
  }

 private:
  struct Share {
    const char* begin;
    long bytes, from;  // from: where it begins in the stream
  };
  const char* position() const { return shares_[reached_].begin + (prefetched_ - shares_[reached_].from); }
  void seek(size_t share, long offset) {
    reached_ = share;
    prefetched_ = shares_[share].from;
    advance(offset);
  }
  void advance(long bytes) {
    prefetched_ += bytes;
    while (reached_ < shares_.size() && prefetched_ >= shares_[reached_].from + shares_[reached_].bytes) ++reached_;
  }

  std::vector<Share> shares_;
  long distance_ = 0;
  bool passing_ = false;
  long total_ = 0, prefetched_ = 0;   // bytes of the stream
  size_t current_ = 0, reached_ = 0;  // shares: of the running product, and of the prefetch
};

}  // namespace fledge
