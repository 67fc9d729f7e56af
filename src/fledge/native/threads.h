// A team of threads that lives as long as the library.
//
// A decode step has hundreds of barriers, so a thread that waits spins first, which is over sooner than being woken
// from sleep. While it spins it yields its core again and again. A yield that takes long means that another thread
// runs on this core: for the next 20 ms the thread then sleeps almost at once (on a futex). Spinning next to a busy
// neighbour is what makes OpenMP code 10-30 times slower on a shared machine. For the same reason work is handed out
// in small pieces with stealing: a thread that lost its core does not hold up the others.
#pragma once
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace fledge {

// Between two looks at a word that another thread will write.
inline void relax_cpu() {
#ifdef __x86_64__
  _mm_pause();
#else
  asm volatile("yield");
#endif
}

// How this thread takes denormal numbers, to be restored; and that they count as zero from now on, operands and
// results.
inline uint64_t denormals() {
#ifdef __x86_64__
  return _mm_getcsr();
#else
  uint64_t control;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  return control;
#endif
}
inline void restore_denormals(uint64_t control) {
#ifdef __x86_64__
  _mm_setcsr(static_cast<unsigned>(control));
#else
  asm volatile("msr fpcr, %0" ::"r"(control));
#endif
}
inline void flush_denormals() {
#ifdef __x86_64__
  restore_denormals(denormals() | _MM_FLUSH_ZERO_ON | _MM_DENORMALS_ZERO_ON);
#else
  restore_denormals(denormals() | 1 << 24);  // FZ
#endif
}

inline void futex_wait(std::atomic<int>* address, int expected) {
  syscall(SYS_futex, reinterpret_cast<int*>(address), FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}
inline void futex_wake_all(std::atomic<int>* address) {
  syscall(SYS_futex, reinterpret_cast<int*>(address), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

// Blocks until *word differs from `seen`: polls for a few microseconds, then polls and yields for `spin`, then sleeps.
inline void wait_while(std::atomic<int>* word, int seen, std::atomic<int>* sleepers, std::chrono::microseconds spin) {
  using Clock = std::chrono::steady_clock;
  constexpr int kPolls = 300;
  constexpr auto kLongYield = std::chrono::microseconds(10);  // on a core of one's own it takes less than one
  constexpr auto kShared = std::chrono::milliseconds(20);     // how long a core then counts as shared
  thread_local Clock::time_point alone_from{};
  auto changed = [&] { return word->load(std::memory_order_acquire) != seen; };
  for (int i = 0; i < kPolls; ++i) {
    if (changed()) return;
    relax_cpu();
  }
  auto now = Clock::now();
  for (auto end = now + spin; alone_from <= now && now < end;) {
    sched_yield();
    auto before = now;
    now = Clock::now();
    if (now - before > kLongYield) alone_from = now + kShared;
    for (int i = 0; i < 8; ++i) {
      if (changed()) return;
      relax_cpu();
    }
  }
  sleepers->fetch_add(1);
  while (!changed()) futex_wait(word, seen);
  sleepers->fetch_sub(1);
}

class Team {
 public:
  static constexpr int kMaxThreads = 64;
  int size = 1;

  bool started() const { return started_; }
  void start(int threads) {
    started_ = true;
    size = threads < 1 ? 1 : (threads > kMaxThreads ? kMaxThreads : threads);
    awaken();
  }

  // After a fork: the child has none of the threads.
  void lose_threads() { lost_ = true; }

  // Runs body(thread id) on every thread of the team and returns when all are done. Denormal numbers count as zero in
  // there: a softmax is full of them, and the processor takes a hundred cycles for each.
  void run(const std::function<void(int)>& body) {
    if (lost_) awaken();
    uint64_t callers = denormals();
    flush_denormals();
    body_ = &body;
    generation_.fetch_add(1);
    if (idle_sleepers_.load() > 0) futex_wake_all(&generation_);
    body(0);
    barrier();
    body_ = nullptr;
    restore_denormals(callers);
  }

  // Where thread `id`'s own share of `count` items begins. It works on those first, then steals from the others'
  // shares.
  int share_begin(int id, int count) const { return static_cast<int>(static_cast<long>(count) * id / size); }

  // Inside run, called by every thread: work(i) is called once for each 0 <= i < count, on some thread. All are done
  // when it returns, as it ends with a barrier.
  template <class Work>
  void for_each(int id, int count, Work&& work) {
    for (int turn = 0; turn < size; ++turn) {
      int owner = (id + turn) % size;
      int begin = share_begin(owner, count), end = share_begin(owner + 1, count);
      while (true) {
        int item = begin + next_[owner].value.fetch_add(1, std::memory_order_relaxed);
        if (item >= end) break;
        work(item);
      }
    }
    barrier();
  }

  void barrier() {
    if (size == 1) {
      next_[0].value.store(0, std::memory_order_relaxed);
      return;
    }
    int seen = epoch_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size) {
      for (int i = 0; i < size; ++i) next_[i].value.store(0, std::memory_order_relaxed);
      arrived_.store(0, std::memory_order_relaxed);
      epoch_.fetch_add(1);
      if (barrier_sleepers_.load() > 0) futex_wake_all(&epoch_);
    } else {
      wait_while(&epoch_, seen, &barrier_sleepers_, kBarrierSpin);
    }
  }

 private:
  static constexpr std::chrono::microseconds kBarrierSpin{100};
  static constexpr std::chrono::microseconds kIdleSpin{300};  // between calls, where Python works
  struct alignas(64) Counter {  // how many items of a thread's share are taken; a cache line each
    std::atomic<int> value{0};
  };

  void awaken() {
    lost_ = false;
    idle_sleepers_.store(0);
    barrier_sleepers_.store(0);
    int seen = generation_.load();
    for (int id = 1; id < size; ++id) std::thread([this, id, seen] { worker(id, seen); }).detach();
  }

  void worker(int id, int seen) {
    flush_denormals();
    while (true) {
      wait_while(&generation_, seen, &idle_sleepers_, kIdleSpin);
      seen = generation_.load(std::memory_order_acquire);
      (*body_)(id);
      barrier();
    }
  }

  const std::function<void(int)>* body_ = nullptr;
  bool lost_ = false, started_ = false;
  Counter next_[kMaxThreads];
  alignas(64) std::atomic<int> generation_{0};
  alignas(64) std::atomic<int> idle_sleepers_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> epoch_{0};
  alignas(64) std::atomic<int> barrier_sleepers_{0};
};

inline Team& team() {
  static Team* instance = new Team();  // never destroyed: detached workers outlive static destruction
  return *instance;
}
// Held by every call that uses the team: calls run one after the other, so their scratch memory can be shared.
inline std::mutex& call_mutex() {
  static std::mutex mutex;
  return mutex;
}
// From now on a fork waits until no call is running, and the child starts threads of its own when it needs them.
inline void survive_forks() {
  pthread_atfork([] { call_mutex().lock(); }, [] { call_mutex().unlock(); },
                 [] {
                   team().lose_threads();
                   call_mutex().unlock();
                 });
}

}  // namespace fledge
