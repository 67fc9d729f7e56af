// What each row of a batch sees, and how attention is cut into units of work.
//
// A request's rows are written after its committed prefix of L tokens, into the window. A row sees the prefix and
// those window entries that its mask names, itself among them: a tree node its ancestors. Numbered in that order they
// are the row's *logical* sequence, which attention sums over:
//
//     logical index   0 ................ L-1   L                L+1               ...
//     KV slot         0 ................ L-1   L + first entry  L + second entry  ...       entries that the mask names
//
// The sequence is cut into splits of 256 keys, as in flash decoding. A unit is one split for a few rows of one request:
//
//     request 0   split 0: [rows 0-31] [rows 32-63]   split 1: [rows 0-31] [rows 32-63]
//     request 1   split 0: [rows 64-70]               ...
//
// attention.h computes each unit for every KV head. The units of one split follow each other and find its keys in the
// cache.
#pragma once
#include <algorithm>
#include <vector>

#include "kv_pages.h"

namespace fledge {

constexpr int kSplit = 256;  // keys

struct Batch {  // R rows of B requests, laid end to end; see `ForwardBatch`
  int rows, requests, max_pages;
  const int *token_ids, *positions;           // [R]
  const int* row_start;                       // [B + 1]
  const int *prefix_length, *window_offset;  // [B]
  const int* page_table;                      // [B, max_pages]
  const uint64_t* window_mask;                // [R]; null: causal
  int page_of(int request, int index) const { return page_table[request * max_pages + index / kPage]; }
};

struct Window {  // how far rows see back; see attention/layout.py
  int size = 0;            // how many tokens a row sees at most, its own included; 0: all
  int sinks = 0;           // the sequence's first tokens, which it sees besides; less than a page
  bool of_prefix = false;  // a tree's row sees `size` of the prefix, and all of its ancestors
};

// What a row sees, worked out once per forward.
struct RowView {
  int request, index;  // where its own key and value are written
  int length;          // of its logical sequence, itself included
  int start = 0;       // the first logical index it sees; above 0 with a sliding window
  int sinks = 0;       // indices before `start` that it sees, too: 0 .. sinks - 1
  bool contiguous;     // its slots are in logical order
  uint64_t mask;       // the window entries it sees; 0 in a causal batch
  int first_split() const { return start / kSplit; }
  int end_split() const { return (length + kSplit - 1) / kSplit; }
  bool apart() const { return sinks && first_split() > 0; }  // its sinks are in a split before those
  int splits() const { return end_split() - first_split() + apart(); }  // of which it sees some keys
  bool sees(int split) const { return (split >= first_split() && split < end_split()) || (split == 0 && apart()); }
};

struct Unit {
  int request, first_row, rows, split;
  bool contiguous;          // all of its rows are
  int length, shortest;     // the longest and the shortest of its rows' sequences
  int earliest, latest;     // of their starts
  int sinks = 0;            // the most that one of its rows has
  int part = 0, parts = 1;  // its number among the units of its split, and how many those are
  int next_split = 0;       // the first unit of the next split or request; 0: there is none
  bool first_of_sinks() const { return split == 0 && sinks; }
  int begin() const { return first_of_sinks() ? 0 : std::max(split * kSplit, earliest / kPage * kPage); }
  int end() const { return first_of_sinks() && earliest >= kSplit ? sinks : std::min(length, (split + 1) * kSplit); }
};

struct AttentionPlan {
  std::vector<RowView> rows;
  std::vector<Unit> units;
  int max_splits = 1;

  void build(const Batch& b, int unit_rows, Window window) {
    rows.resize(b.rows);
    units.clear();
    max_splits = 1;
    int previous = 0;  // the first unit of the split before this one
    for (int r = 0; r < b.requests; ++r) {
      int prefix = b.prefix_length[r];
      for (int i = b.row_start[r]; i < b.row_start[r + 1]; ++i) {
        int slot = b.window_offset[r] + i - b.row_start[r];
        RowView v{r, prefix + slot, prefix + slot + 1, 0, 0, true, 0};
        if (b.window_mask) {
          v.mask = b.window_mask[i];
          v.length = prefix + __builtin_popcountll(v.mask);
          v.contiguous = (v.mask & (v.mask + 1)) == 0;
        }
        int seen = b.window_mask && window.of_prefix ? prefix : v.length;
        if (window.size && seen - window.size > window.sinks) v.start = seen - window.size, v.sinks = window.sinks;
        rows[i] = v;
      }
      int splits = 1;
      for (int split = 0; split < splits; ++split) {
        int first = static_cast<int>(units.size());
        for (int i = b.row_start[r]; i < b.row_start[r + 1]; i += unit_rows) {
          int n = b.row_start[r + 1] - i < unit_rows ? b.row_start[r + 1] - i : unit_rows;
          Unit u{r, i, n, split, true, 0, rows[i].length, rows[i].start, 0};
          for (int j = i; j < i + n; ++j) {
            u.contiguous = u.contiguous && rows[j].contiguous;
            if (rows[j].length > u.length) u.length = rows[j].length;
            if (rows[j].length < u.shortest) u.shortest = rows[j].length;
            u.earliest = std::min(u.earliest, rows[j].start);
            u.latest = std::max(u.latest, rows[j].start);
            u.sinks = std::max(u.sinks, rows[j].sinks);
          }
          splits = std::max(splits, (u.length + kSplit - 1) / kSplit);
          if (split * kSplit >= u.length || ((split + 1) * kSplit <= u.earliest && !u.first_of_sinks())) continue;
          u.part = static_cast<int>(units.size()) - first;
          units.push_back(u);
        }
        int stop = static_cast<int>(units.size());
        if (first == stop) continue;
        for (int i = first; i < stop; ++i) units[i].parts = stop - first;
        for (int i = previous; i < first; ++i) units[i].next_split = first;
        previous = first;
      }
      if (splits > max_splits) max_splits = splits;
    }
  }
};

}  // namespace fledge
