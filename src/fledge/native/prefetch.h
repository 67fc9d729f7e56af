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

constexpr long kUnit = 1024;  // bytes that are asked for together, each of their lines with a multiplication

// What to ask for while one panel is multiplied, a little with every multiplication: a burst would fill the queue of
// misses and hold up the loads behind it. Into L2. Asking takes next to no instructions, as each of them holds up a
// multiplication, and is never a call: around one a product's sums go to memory and back.
struct Ahead {
  const char *next = nullptr, *end = nullptr, *then = nullptr;  // up to `end`, and then from `then` on
  long left = 0;                                                // units

  // The unit to ask for; null: none.
  [[gnu::always_inline]] const char* unit() {
    if (left == 0) return nullptr;
    if (next == end) next = then;
    --left;
    next += kUnit;
    return next - kUnit;
  }
};

// Asks for `lines` of a unit, if there is one, from line `first` on.
[[gnu::always_inline]] inline void ask(const char* unit, int first, int lines) {
  if (unit == nullptr) return;
  for (int i = first; i < first + lines; ++i) _mm_prefetch(unit + i * kLine, _MM_HINT_T1);
}

// Which of the groups of rows it is that pass over a panel in turn, each asking for its part of what comes.
struct Turn {
  int group, groups;
  int rows(int left) const { return (left + groups - group - 1) / (groups - group); }  // its own, of those that are left
  [[gnu::always_inline]] bool asks(int step) const { return groups == 1 || step % groups == group; }
};

class WeightStream {
 public:
  // A forward's shares, in the order of its products, to be asked for so many bytes ahead, a multiple of kUnit.
  void clear(long ahead) {
    ahead_ = ahead;
    shares_.clear();
    total_ = asked_ = 0;
    current_ = asking_ = 0;
  }
  void add(const char* begin, long bytes) {
    shares_.push_back({begin, bytes, total_});
    total_ += bytes;
  }
  // Asks for the first of them.
  void start() {
    for (long at = 0; at < ahead_ && at < total_; at += kUnit) {
      ask(position(), 0, kUnit / kLine);
      advance(kUnit);
    }
  }
  long ahead() const { return ahead_; }

  // The product starts whose share begins there; false: that isn't the one that comes next.
  bool begin(const char* share) { return current_ < shares_.size() && shares_[current_].begin == share; }
  void end() { ++current_; }

  // What to ask for while a panel of the running product is read.
  Ahead take(const char* panel, long bytes) {
    const Share& share = shares_[current_];
    long at = panel - share.begin;
    if (at < 0 || at >= share.bytes) at = share.bytes;  // another thread's: this one has read all of its own
    long due = share.from + at + ahead_, until = due + bytes < total_ ? due + bytes : total_;
    if (asked_ < due) seek(current_, at + ahead_);  // it is late: what lies between comes unasked
    long wanted = until - asked_;
    if (wanted <= 0) return {};
    Ahead ahead{position(), shares_[asking_].begin + shares_[asking_].bytes, nullptr, wanted / kUnit};
    advance(wanted);
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
  long ahead_ = 0;
  long total_ = 0, asked_ = 0;       // bytes of the stream
  size_t current_ = 0, asking_ = 0;  // shares
};

}  // namespace fledge
