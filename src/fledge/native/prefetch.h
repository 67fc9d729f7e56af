// Asking for weights before they are needed.
//
// A thread knows what it will read in a forward: its share of every product's weights, one product after the other. It asks
// for that stream a little ahead of where it multiplies, so that the first weights of a product are on their way while
// the last ones of the product before are multiplied.
#pragma once
#include <immintrin.h>

#include <vector>

namespace fledge {

constexpr int kLine = 64;  // bytes

// What to ask for while one panel is multiplied, a little with every multiplication: a burst would fill the queue of
// misses and hold up the loads behind it. Into L2.
struct Ahead {
  const char *next = nullptr, *end = nullptr, *then = nullptr;  // up to `end`, and then from `then` on
  long left = 0;                                                // lines
  int rate = 0, owed = 0;                                       // lines for every 16 that are read, and left over

  void ask(int lines_read) {
    for (owed += rate * lines_read; owed >= 16 && left > 0; owed -= 16, --left) {
      if (next == end) next = then;
      _mm_prefetch(next, _MM_HINT_T1);
      next += kLine;
    }
  }
};

class WeightStream {
 public:
  // So far ahead, in bytes: time enough for memory to answer, near enough to be in step with the processor's prefetcher.
  static constexpr long kAhead = 16384;

  // A forward's shares, in the order of its products; then the first of them is asked for.
  void clear() {
    shares_.clear();
    total_ = asked_ = 0;
    current_ = asking_ = 0;
  }
  void add(const char* begin, long bytes) {
    shares_.push_back({begin, bytes, total_});
    total_ += bytes;
  }
  void start() {
    for (long at = 0; at < kAhead && at < total_; at += kLine) {
      _mm_prefetch(position(), _MM_HINT_T1);
      advance(kLine);
    }
  }

  // The product starts whose share begins there; false: that isn't the one that comes next.
  bool begin(const char* share) { return current_ < shares_.size() && shares_[current_].begin == share; }
  void end() { ++current_; }

  // What to ask for while a panel of the running product is read.
  Ahead take(const char* panel, long bytes) {
    const Share& share = shares_[current_];
    long at = panel - share.begin;
    if (at < 0 || at >= share.bytes) at = share.bytes;  // another thread's: this one has read all of its own
    if (asked_ <= share.from + at) seek(current_, at);
    long lead = asked_ - share.from - at, wanted = bytes + kAhead - lead, rest = total_ - asked_;
    if (wanted > 2 * bytes) wanted = 2 * bytes;
    long lines = (wanted < rest ? wanted : rest) / kLine;
    if (lines <= 0) return {};
    int rate = static_cast<int>((16 * lines * kLine + bytes - 1) / bytes);
    Ahead ahead{position(), shares_[asking_].begin + shares_[asking_].bytes, nullptr, lines, rate};
    advance(lines * kLine);
    if (asking_ < shares_.size()) ahead.then = shares_[asking_].begin;
    return ahead;
  }

 private:
  struct Share {
    const char* begin;
    long bytes, from;  // from: where it begins in the stream
  };
  const char* position() const { return shares_[asking_].begin + (asked_ - shares_[asking_].from); }
  void seek(size_t share, long offset) {
    asking_ = share;
    asked_ = shares_[share].from;
    advance(offset);
  }
  void advance(long bytes) {
    asked_ += bytes;
    while (asking_ < shares_.size() && asked_ >= shares_[asking_].from + shares_[asking_].bytes) ++asking_;
  }

  std::vector<Share> shares_;
  long total_ = 0, asked_ = 0;       // bytes of the stream
  size_t current_ = 0, asking_ = 0;  // shares
};

}  // namespace fledge
