// Raw read bandwidth: T threads sum a buffer of huge pages again and again; the best and the median pass count.
//   bandwidth THREADS BYTES SECONDS   ->   {"best": bytes/s, "median": bytes/s, "passes": n, "kernel": "avx512"}
// All threads start each pass together; a pass lasts from the first thread's start to the last one's end.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

enum { LINE = 64, STRIDE = 512, AHEAD = 4096, HUGE_PAGE = 2 << 20, MAX_PASSES = 100000, MAX_THREADS = 1024 };

static char* buffer;
static size_t share;  // bytes per thread, a multiple of STRIDE
static int threads;
static atomic_int arrived, phase, done;
static _Atomic uint64_t sink;  // keeps the sums alive

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

// Spins: waking a sleeping thread costs tens of microseconds, which a pass over a small buffer would show.
// Where threads outnumber free cores the wait gives way after a while.
static void meet(void) {
  int mine = atomic_load(&phase);
  if (atomic_fetch_add(&arrived, 1) + 1 == threads) {
    atomic_store(&arrived, 0);
    atomic_fetch_add(&phase, 1);
    return;
  }
  for (long spins = 0; atomic_load(&phase) == mine; spins++)
    if (spins > 200000) {
      struct timespec pause = {0, 50000};
      nanosleep(&pause, NULL);
    }
}

#if defined(__AVX512F__)
static const char* kernel = "avx512";
static uint64_t read_share(const char* p) {
  __m512i sum[8];
  for (int k = 0; k < 8; k++) sum[k] = _mm512_setzero_si512();
  for (size_t i = 0; i < share; i += STRIDE) {
    for (int k = 0; k < 8; k++) {
      __builtin_prefetch(p + i + AHEAD + k * LINE, 0, 3);
      sum[k] = _mm512_add_epi64(sum[k], _mm512_load_si512((const void*)(p + i + k * LINE)));
    }
  }
  for (int k = 1; k < 8; k++) sum[0] = _mm512_add_epi64(sum[0], sum[k]);
  return (uint64_t)_mm512_reduce_add_epi64(sum[0]);
}
#elif defined(__AVX2__)
static const char* kernel = "avx2";
static uint64_t read_share(const char* p) {
  __m256i sum[8];
  for (int k = 0; k < 8; k++) sum[k] = _mm256_setzero_si256();
  for (size_t i = 0; i < share; i += STRIDE) {
    for (int k = 0; k < 16; k++) {
      if (k % 2 == 0) __builtin_prefetch(p + i + AHEAD + k * 32, 0, 3);
      sum[k % 8] = _mm256_add_epi64(sum[k % 8], _mm256_load_si256((const __m256i*)(p + i + k * 32)));
    }
  }
  uint64_t lanes[4];
  for (int k = 1; k < 8; k++) sum[0] = _mm256_add_epi64(sum[0], sum[k]);
  _mm256_storeu_si256((__m256i*)lanes, sum[0]);
  return lanes[0] + lanes[1] + lanes[2] + lanes[3];
}
#else
static const char* kernel = "plain";
static uint64_t read_share(const char* p) {
  uint64_t sum[8] = {0};
  const uint64_t* words = (const uint64_t*)p;
  for (size_t i = 0; i < share / 8; i += 64) {
    for (int k = 0; k < 64; k++) {
      if (k % 8 == 0) __builtin_prefetch(words + i + k + AHEAD / 8, 0, 3);
      sum[k % 8] += words[i + k];
    }
  }
  uint64_t all = 0;
  for (int k = 0; k < 8; k++) all += sum[k];
  return all;
}
#endif

static double started[MAX_THREADS], ended[MAX_THREADS], pass_seconds[MAX_PASSES];
static int passes;
static double budget;

static void* run(void* argument) {
  size_t id = (size_t)argument;
  char* mine = buffer + id * share;
  memset(mine, (int)id + 1, share);  // first touch by the thread that reads it
  double begin = now();
  for (int pass = 0;; pass++) {
    meet();
    if (atomic_load(&done)) return NULL;
    started[id] = now();
    atomic_fetch_add(&sink, read_share(mine));
    ended[id] = now();
    meet();
    if (id == 0) {  // the others wait at the next meeting, so their times stand still
      double first = started[0], last = ended[0];
      for (int other = 1; other < threads; other++) {
        if (started[other] < first) first = started[other];
        if (ended[other] > last) last = ended[other];
      }
      pass_seconds[pass] = last - first;
      passes = pass + 1;
      if (passes == MAX_PASSES || (passes >= 5 && now() - begin > budget)) atomic_store(&done, 1);
    }
  }
}

static int ascending(const void* a, const void* b) {
  double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

int main(int count, char** values) {
  if (count != 4) return 2;
  threads = atoi(values[1]);
  if (threads < 1 || threads > MAX_THREADS) return 2;
  share = strtoull(values[2], NULL, 10) / threads / STRIDE * STRIDE;
  budget = atof(values[3]);
  if (share == 0) return 2;
  size_t bytes = share * threads;
  void* memory = mmap(NULL, bytes + AHEAD + STRIDE + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 3;
  buffer = (char*)(((uintptr_t)memory + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
#ifdef MADV_HUGEPAGE
  madvise(buffer, bytes, MADV_HUGEPAGE);
#endif
  pthread_t others[MAX_THREADS];
  for (size_t id = 1; id < (size_t)threads; id++)
    if (pthread_create(&others[id], NULL, run, (void*)id)) return 4;
  run((void*)0);
  for (int id = 1; id < threads; id++) pthread_join(others[id], NULL);
  qsort(pass_seconds, passes, sizeof(double), ascending);
  printf("{\"best\": %.6e, \"median\": %.6e, \"passes\": %d, \"kernel\": \"%s\"}\n", bytes / pass_seconds[0],
         bytes / pass_seconds[passes / 2], passes, kernel);
  return 0;
}
