// The paged KV pool: [layers, pages, KV heads, keys or values, 32 entries of head_dim numbers].
//
// A page's keys and its values lie in the blocks of gemm.h, so that attention multiplies pages just as weights are:
//
//     scores  = query [queries, head_dim] . keys    blocks of 32 dimensions by 32 entries; lines of pairs of dimensions
//     outputs = weights [queries, 32]     . values  blocks of 32 entries by 32 dimensions; lines of pairs of entries
#pragma once
#include "tiles.h"

namespace fledge {

constexpr int kPage = 32;  // entries
// Of a tree, its root included: a row's mask is one 64-bit integer. So a window has no more entries, and a node no more
// children.
constexpr int kMostNodes = 64;
static_assert(kPage == kPanel, "keys are multiplied as a panel of weights is");

struct KvShape {
  int layers, pages, kv_heads, head_dim;
  size_t half() const { return static_cast<size_t>(kPage) * head_dim; }  // elements of a page's keys
  size_t page(int layer, int page_id, int head) const {
    return ((static_cast<size_t>(layer) * pages + page_id) * kv_heads + head) * 2 * half();
  }
};

inline size_t key_offset(int entry, int d) {
  return static_cast<size_t>(d / 32) * 1024 + block_offset(d % 32 / 2, entry / 16) + (entry % 16) * 2 + d % 2;
}
inline size_t value_offset(int entry, int d) {
  return static_cast<size_t>(d / 32) * 1024 + block_offset(entry / 2, d % 32 / 16) + (d % 16) * 2 + entry % 2;
}
inline void write_key(bf16* page, int entry, const bf16* key, int head_dim) {
  for (int d = 0; d < head_dim; d += 2)
    std::memcpy(page + key_offset(entry, d), key + d, 4);
}
inline void write_value(bf16* page, int entry, const bf16* value, int head_dim) {
  for (int d = 0; d < head_dim; d += 16) store_alternate(page + value_offset(entry & ~1, d), value + d, entry % 2);
}
// A line of values for two entries that needn't be neighbours, 16 dimensions each: `a` and `b` are the lines in which
// they lie in their pages, as the first or second (odd) of a pair.
inline Ints pair_values(const bf16* a, bool a_odd, const bf16* b, bool b_odd) {
  Ints low = load_line(a), high = load_line(b);
  low = a_odd ? shift_right(low, 16) : low & broadcast(0xffff);
  high = b_odd ? high & broadcast(~0xffff) : high << 16;
  return low | high;
}

}  // namespace fledge
