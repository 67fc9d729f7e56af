// What requests carry from round to round: coins, lengths and tokens, KV pages, and rows of the batch.
#include <cstring>

#include "tree.h"

using namespace fledge;

extern "C" {

// See `coins` in sampling.py: n keys and positions, one coin each.
void fledge_coins(const int64_t* keys, const int64_t* positions, int64_t* coins, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    uint64_t z = static_cast<uint64_t>(keys[i]) + (static_cast<uint64_t>(positions[i]) + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    coins[i] = static_cast<int64_t>(z ^ (z >> 31));
  }
}

// See `RunningBatch.advance`: the first `emits` [B] of a round's tokens [B, width] become part of the requests.
// Histories [B, known] begin at position 0; what lies beyond one goes to its last place. known 0: there are none.
void fledge_advance(const int64_t* emits, const int64_t* tokens, int32_t* length, int64_t* bonus, int32_t* history,
                    int64_t requests, int64_t width, int64_t known) {
  for (int64_t b = 0; b < requests; ++b) {
    const int64_t* emitted = tokens + b * width;
    for (int64_t n = 0; known && n < width; ++n)
      history[b * known + std::min(length[b] + 1 + n, known - 1)] = static_cast<int32_t>(emitted[n]);
    length[b] += static_cast<int32_t>(emits[b]);
    bonus[b] = emitted[emits[b] - 1];
  }
}

// See `RunningBatch.fall_behind`: tokens and features of the R `positions` that a round passed, `row_start` [B + 1],
// are kept for a head that will need them; position p in column p % kept. Row r's features are row source[r], null:
// row r.
void fledge_keep(const int64_t* tokens, const char* features, const int64_t* source, const int32_t* positions,
                 const int32_t* row_start, int64_t* recent_tokens, char* recent_features, int64_t requests,
                 int64_t kept, int64_t row_bytes) {
  for (int64_t b = 0; kept && b < requests; ++b)
    for (int64_t r = row_start[b]; r < row_start[b + 1]; ++r) {
      int64_t to = b * kept + positions[r] % kept, from = source ? source[r] : r;
      recent_tokens[to] = tokens[r];
      std::memcpy(recent_features + to * row_bytes, features + from * row_bytes, row_bytes);
    }
}

// See `RunningBatch.page_entry`: a request's pages from number `start` on, [count], into row `row` of both page tables.
void fledge_enter_pages(const int32_t* pages, int32_t* page_table, int32_t* head_pages, const int32_t* head_start,
                        int64_t row, int64_t width, int64_t start, int64_t count, int64_t page_size) {
  std::copy_n(pages, count, page_table + row * width + start);
  std::copy_n(pages, count, head_pages + row * width + start - head_start[row] / page_size);
}

// Row `from` of `count` tensors over their row `to`; `places` [count, 2]: where each begins, and the bytes of a row.
void fledge_copy_row(const int64_t* places, int64_t count, int64_t from, int64_t to) {
  for (int64_t n = 0; n < count; ++n) {
    char* rows = reinterpret_cast<char*>(places[2 * n]);  // null for rows of nothing
    int64_t bytes = places[2 * n + 1];
    std::copy_n(rows + from * bytes, bytes, rows + to * bytes);
  }
}

}  // extern "C"
