// The C interface besides forwards: starting, packing weights, moving KV entries, sampling, reading memory. Called from
// Python through ctypes.
#include "models.h"
#include "sampler.h"
#include "screen.h"

using namespace fledge;

extern "C" {

// Starts the threads, which all builds of the kernels in a process share. Returns 0, or 1 when the operating system
// refuses the state that AMX needs.
int fledge_start(int threads) {
  std::lock_guard<std::mutex> lock(call_mutex());
  if (!request_tiles()) return 1;
  if (!team().started()) team().start(threads), survive_forks();
  return 0;
}

// A weight [outputs, inputs] whose parts are described by five numbers each: rows, bits, groups of a block, whether they
// have minima, and the code of 0. Null when there is no memory or no such format.
Weight* fledge_weight(int outputs, int inputs, const int* described, int parts) {
  auto* w = new Weight;
  w->outputs = outputs;
  w->inputs = inputs;
  w->parts = parts;
  bool known = parts <= Weight::kMostParts;
  for (int i = 0; known && i < parts; ++i, described += 5) {
    const Format* format = std::find_if(std::begin(kFormats), std::end(kFormats), [&](const Format& f) {
      return f.bits == described[1] && f.groups == described[2] && f.minima == described[3];
    });
    known = format != std::end(kFormats);
    w->part[i] = {format, described[4], 0, (described[0] + kPanel - 1) / kPanel, 0};
  }
  if (known) allocate(*w);
  if (w->data) return w;
  delete w;
  return nullptr;
}
void fledge_free_weight(Weight* w) { delete w; }
int64_t fledge_weight_bytes(const Weight* w) { return static_cast<int64_t>(w->bytes); }
// Rows from `first` on, a multiple of 32, all of one part: numbers in bf16, or codes with their scales and minima in f16.
void fledge_pack_numbers(Weight* w, int first, int rows, const bf16* numbers) { pack_rows(*w, first, rows, numbers); }
void fledge_pack_codes(Weight* w, int first, int rows, const uint8_t* values, const uint16_t* scale,
                       const uint16_t* minimum) {
  pack_rows(*w, first, rows, values, scale, minimum);
}
void fledge_unpack_rows(const Weight* w, int first, int rows, float* out) {
  for (int r = 0; r < rows; ++r) unpack_row(*w, first + r, out + static_cast<size_t>(r) * w->inputs);
}

void fledge_move_kv(bf16* kv, int layers, int64_t pages, int kv_heads, int head_dim, const int64_t* source,
                    const int64_t* destination, int64_t count) {
  std::lock_guard<std::mutex> lock(call_mutex());
  KvShape shape{layers, static_cast<int>(pages), kv_heads, head_dim};
  std::vector<bf16> held(static_cast<size_t>(count) * 2 * head_dim);
  for (int l = 0; l < layers; ++l)
    for (int h = 0; h < kv_heads; ++h) {
      for (int64_t i = 0; i < count; ++i) {
        if (source[i] == destination[i]) continue;
        const bf16* page = kv + shape.page(l, static_cast<int>(source[i] / kPage), h);
        int entry = static_cast<int>(source[i] % kPage);
        for (int d = 0; d < head_dim; ++d) {
          held[i * 2 * head_dim + d] = page[key_offset(entry, d)];
          held[i * 2 * head_dim + head_dim + d] = page[shape.half() + value_offset(entry, d)];
        }
      }
      for (int64_t i = 0; i < count; ++i) {
        if (source[i] == destination[i]) continue;
        bf16* page = kv + shape.page(l, static_cast<int>(destination[i] / kPage), h);
        int entry = static_cast<int>(destination[i] % kPage);
        write_key(page, entry, &held[i * 2 * head_dim], head_dim);
        write_value(page + shape.half(), entry, &held[i * 2 * head_dim + head_dim], head_dim);
      }
    }
}

// One token per row of logits [rows, vocabulary]; temperature 0 or less: argmax. The other arguments are [rows].
void fledge_sample(const float* logits, int64_t rows, int64_t vocabulary, const float* temperature,
                   const int64_t* top_k_rows, const float* top_p, const float* min_p, const int64_t* coins,
                   int64_t* out) {
  std::lock_guard<std::mutex> lock(call_mutex());
  Team& t = team();
  static std::vector<Buffer<float>> work;
  if (static_cast<int>(work.size()) < t.size) work.resize(t.size);
  int n = static_cast<int>(vocabulary);
  t.run([&](int id) {
    float* mine = work[id].ensure(2 * (static_cast<size_t>(n) + 16));
    t.for_each(id, static_cast<int>(rows), [&](int r) {
      const float* x = logits + static_cast<size_t>(r) * n;
      SampleOptions o{temperature[r], top_p[r], min_p[r], static_cast<int>(top_k_rows[r])};
      out[r] = choose_token(x, n, o, coins[r], mine);
    });
  });
}

// Reads memory as fast as it can be read, each thread its share. The sum keeps a compiler from leaving that out.
uint64_t fledge_read(const uint64_t* words, int64_t bytes) {
  constexpr int64_t kBlock = 64;    // words
  constexpr int64_t kAhead = 512;  // words that are prefetched before they are read
  std::lock_guard<std::mutex> lock(call_mutex());
  Team& t = team();
  std::atomic<uint64_t> sum{0};
  int blocks = static_cast<int>(bytes / (kBlock * static_cast<int64_t>(sizeof(uint64_t))));
  t.run([&](int id) {
    uint64_t lanes[kBlock] = {};
    for (int64_t b = t.share_begin(id, blocks); b < t.share_begin(id + 1, blocks); ++b) {
      const uint64_t* block = words + b * kBlock;
      for (int64_t k = 0; k < kBlock; k += 8) __builtin_prefetch(block + kAhead + k, 0, 3);
      for (int64_t k = 0; k < kBlock; ++k) lanes[k] += block[k];
    }
    uint64_t mine = 0;
    for (uint64_t lane : lanes) mine += lane;
    sum.fetch_add(mine);
  });
  return sum.load();
}

}  // extern "C"
