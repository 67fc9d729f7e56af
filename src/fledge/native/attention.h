// Tree attention over paged keys and values: the splits of attention_plan.h, and how they are merged.
//
// All sums run over a row's logical sequence in fixed blocks (32 keys) and splits (256 keys), so the result depends
// on nothing but the row's own sequence: a tree node gets, bit for bit, what plain decode gives the same token later.
// A unit:
//
//     scores  = query . keys, page by page          as slots lie, where all rows see them in order
//               the window's pages once, of which each row picks its own ancestors' scores
//     weights = softmax of the split's scores        with its maximum and sum
//     out     = weights . values, page by page       for the window the ancestors' values are gathered into a page
//
// Splits are merged by log-sum-exp (flash decoding). Rows whose window is contiguous (plain decode, prefill, chains)
// need no picking and no gathering.
#pragma once
#include <algorithm>

#include "attention_plan.h"
#include "gemm.h"
#include "softmax.h"

namespace fledge {

constexpr int kMergedAtOnce = 16;  // queries, the lanes of a vector

struct AttentionScratch {  // per thread
  Buffer<bf16> tile, value;
  Buffer<float> scores, window_scores, out, maxima, sums, factors;
};

struct AttentionCall {
  KvShape shape;
  bf16* kv;  // the whole pool
  int layer, heads, rows;
  const bf16* query;  // [kv_heads, rows, heads of a group, head_dim], with room for 31 queries more
  bf16* out;          // [rows, heads * head_dim]
  float *partial, *maxima, *sums;  // of each split: [max_splits, kv_heads, rows, heads of a group(, head_dim)]
  float scale;
  int group() const { return heads / shape.kv_heads; }
  size_t first_query(int kv_head, int row) const { return (static_cast<size_t>(kv_head) * rows + row) * group(); }
  size_t split_queries() const { return static_cast<size_t>(rows) * heads; }
};

// Prefetches the pages of the next split into L2 (after the last split, those of the next head's first), evenly while
// this one is computed, so that memory never idles and is never flooded. Each unit of a split prefetches its part.
//
// With kInterleavePages it goes line by line through all pages at once, keys and values alternating: an Intel
// processor's own prefetcher follows each of them, and has time to be there first. Without, it goes page after page:
// an AMD Zen 4 takes a third less time that way.
struct PagePrefetch {
  const char* pages[kSplit / kPage];
  int count = 0, half = 0;   // pages, and the bytes of a page's keys
  int page = 0, offset = 0;  // the next line: of this page or, if interleaved, of every page
  int left = 0;              // prefetches still to do; if interleaved, of one line of every page
  float rate = 0, due = 0;   // prefetches per unit of time; those that are due by now

  // `time`: how long the unit takes, in the units of `advance`.
  PagePrefetch(const AttentionCall& c, const Batch& b, const AttentionPlan& plan, const Unit& u, int kv_head,
               int time) {
    int head = u.next_split ? kv_head : kv_head + 1;
    if (head == c.shape.kv_heads) return;
    const Unit& to = plan.units[u.next_split];
    int all = (to.end() - to.begin() + kPage - 1) / kPage;
    for (int i = all * u.part / u.parts; i < all * (u.part + 1) / u.parts; ++i)
      pages[count++] = reinterpret_cast<const char*>(
          c.kv + c.shape.page(c.layer, b.page_of(to.request, to.begin() + i * kPage), head));
    if (count == 0) return;
    half = static_cast<int>(c.shape.half() * sizeof(bf16));
    left = 2 * half / kLine * (kInterleavePages ? 1 : count);
    rate = static_cast<float>(left) / time;
  }
  [[gnu::always_inline]] void advance(int time) {
    for (due += rate * time; due >= 1 && left > 0; due -= 1, --left) {
      if (kInterleavePages) {
        for (int i = 0; i < count; ++i) prefetch_to_l2(pages[i] + offset);
        offset = offset < half ? offset + half : offset - half + kLine;
      } else {
        prefetch_to_l2(pages[page] + offset);
        offset += kLine;
        if (offset == 2 * half) offset = 0, ++page;
      }
    }
  }
};

// One unit: some rows of a request, one KV head with its group of query heads, one split of the sequence.
//
// Query q is head q % group of row q / group. A few queries are taken through the whole split before the next ones,
// so that their scores stay in the L1 cache; a query's weights take the place of its scores.
inline void attend(const AttentionCall& c, const AttentionPlan& plan, const Batch& b, const Unit& u, int kv_head,
                   AttentionScratch& scratch) {
  int hd = c.shape.head_dim, group = c.group(), queries = u.rows * group;
  int prefix = b.prefix_length[u.request], begin = u.begin(), end = u.end();
  int blocks = (end - begin + kPage - 1) / kPage;
  int shared = u.contiguous ? blocks : (prefix - begin) / kPage;  // blocks whose slots all rows see in order
  shared = shared < 0 ? 0 : (shared > blocks ? blocks : shared);

  // 16 more than a split: rows with a stride of 1 KB would share a few sets of the L1 cache.
  constexpr int kScoreStride = kSplit + 16, kWeightStride = 2 * kScoreStride, kWindowLanes = kMostNodes + kPage;
  size_t most = (queries < kQueriesAtOnce ? queries : kQueriesAtOnce) + 15;
  float* scores = scratch.scores.ensure(most * kScoreStride);
  bf16* weights = reinterpret_cast<bf16*>(scores);
  float* window = scratch.window_scores.ensure(most * kWindowLanes);
  const bf16* query = c.query + c.first_query(kv_head, u.first_row) * hd;
  float* out = scratch.out.ensure(static_cast<size_t>(queries + 31) * hd);  // a block may start at any row
  bf16* one = scratch.tile.ensure(16 * kPage);  // a row's weights of one page
  bf16* gathered = scratch.value.ensure(c.shape.half());
  float *maxima = scratch.maxima.ensure(queries), *sums = scratch.sums.ensure(queries);

  auto page = [&](int index) { return c.kv + c.shape.page(c.layer, b.page_of(u.request, index), kv_head); };

  // Times for `PagePrefetch`: 1 is the softmax of 32 keys for four queries. For 32 queries a page's scores take 8,
  // and 32 dimensions of its values 2.
  constexpr int kScoreTime = 8, kValueTime = 2;
  bool whole = shared == blocks && u.shortest >= end && u.latest <= begin;  // all queries see all of the split
  int fours = whole ? (queries + 3) / 4 : u.rows * ((group + 3) / 4), steps = (queries + 31) / 32;
  PagePrefetch prefetch(c, b, plan, u, kv_head, (fours + steps * (kScoreTime + kValueTime * (hd / 32))) * blocks);

  int window_base = prefix / kPage * kPage, highest = 0;
  for (int r = 0; shared < blocks && r < u.rows; ++r) {
    int top = 63 - __builtin_clzll(plan.rows[u.first_row + r].mask | 1);
    if (top > highest) highest = top;
  }

  for (int first = 0; first < queries; first += kQueriesAtOnce) {
    int here = queries - first < kQueriesAtOnce ? queries - first : kQueriesAtOnce;
    auto score_page = [&](int index, float* to, int stride) {
      for (int q = 0; q < here; q += 32) {
        prefetch.advance(kScoreTime);
        multiply_panel(query + static_cast<size_t>(first + q) * hd, hd, here - q < 32 ? here - q : 32, page(index), hd,
                       to + static_cast<size_t>(q) * stride, stride, Prefetch{});
      }
    };
    auto values_of = [&](int k) {
      prefetch.advance(kValueTime);
      return page(begin + k * kPage) + c.shape.half();
    };
    // Calls work(row, its first query here, how many of its queries are here, how many of the split's keys it sees).
    auto each_row = [&](auto&& work) {
      for (int q = first; q < first + here;) {
        int row = q / group, stop = (row + 1) * group < first + here ? (row + 1) * group : first + here;
        const RowView& view = plan.rows[u.first_row + row];
        work(view, q, stop - q, (view.length < end ? view.length : end) - begin);
        q = stop;
      }
    };
    for (int k = 0; k < shared; ++k) score_page(begin + k * kPage, scores + k * kPage, kScoreStride);
    // Tree rows: all of the window's slots are scored once, then each row picks its ancestors' scores.
    if (shared < blocks)
      for (int base = window_base; base <= prefix + highest; base += kPage)
        score_page(base, window + (base - window_base), kWindowLanes);
    if (whole)
      softmax_rows(scores, kScoreStride, here, end - begin, blocks * kPage, c.scale, maxima + first, sums + first,
                   prefetch);
    else
      each_row([&](const RowView& row, int q, int some, int count) {
        float* of_row = scores + static_cast<size_t>(q - first) * kScoreStride;
        for (int g = 0; g < some && shared < blocks; ++g) {
          float* s = of_row + static_cast<size_t>(g) * kScoreStride;
          const float* ws = window + static_cast<size_t>(q - first + g) * kWindowLanes;
          int i = begin + shared * kPage;
          for (; i < prefix && i < begin + count; ++i) s[i - begin] = ws[i - window_base];
          uint64_t mask = row.mask;
          for (int logical = prefix; mask; ++logical, mask &= mask - 1)
            if (logical >= i && logical < begin + count)
              s[logical - begin] = ws[prefix + __builtin_ctzll(mask) - window_base];
        }
        constexpr float kUnseen = -1e30f;  // weighs exactly nothing
        int sinks = u.split == 0 ? row.sinks : 0;  // then begin is 0, too
        for (int g = 0; row.start > begin && g < some; ++g)
          std::fill_n(of_row + static_cast<size_t>(g) * kScoreStride + sinks,
                      std::min(row.start - begin, end - begin) - sinks, kUnseen);
        softmax_rows(of_row, kScoreStride, some, count, blocks * kPage, c.scale, maxima + q, sums + q, prefetch);
      });
    for (int q = 0; q < here; q += 32)
      multiply_values(weights + static_cast<size_t>(q) * kWeightStride, kWeightStride, here - q < 32 ? here - q : 32,
                      shared, values_of, out + static_cast<size_t>(first + q) * hd, hd, false);
    if (shared == blocks) continue;
    // Tree rows: each one's ancestors' values are gathered into a page of its own.
    each_row([&](const RowView& row, int q, int some, int count) {
      int path[kMostNodes], known = 0;  // the window's slots that the row sees, in order
      for (uint64_t mask = row.mask; mask; mask &= mask - 1) path[known++] = prefix + __builtin_ctzll(mask);
      for (int k = shared; k * kPage < count; ++k) {
        int start = begin + k * kPage;
        std::memset(gathered, 0, c.shape.half() * sizeof(bf16));
        for (int at = start; at < start + kPage && at < row.length; at += 2) {
          int left = at < prefix ? at : path[at - prefix];
          int right = left;  // past the sequence's end, where the weight is 0
          if (at + 1 < row.length) right = at + 1 < prefix ? at + 1 : path[at + 1 - prefix];
          const bf16* low = page(left) + c.shape.half() + value_offset(left % kPage & ~1, 0);
          const bf16* high = page(right) + c.shape.half() + value_offset(right % kPage & ~1, 0);
          for (int d = 0; d < hd; d += 16)
            store_line(gathered + value_offset(at - start, d),
                       pair_values(low + value_offset(0, d), left % 2, high + value_offset(0, d), right % 2));
        }
        std::memset(one, 0, 16 * kPage * sizeof(bf16));
        for (int g = 0; g < some; ++g)
          std::memcpy(one + g * kPage, weights + static_cast<size_t>(q - first + g) * kWeightStride + k * kPage,
                      kPage * sizeof(bf16));
        multiply_values(one, kPage, some, 1, [&](int) { return gathered; }, out + static_cast<size_t>(q) * hd, hd,
                        true);
      }
    });
  }

  size_t to = static_cast<size_t>(u.split) * c.split_queries() + c.first_query(kv_head, u.first_row);
  for (int q = 0; q < queries; ++q) {
    int row = u.first_row + q / group;
    const RowView& view = plan.rows[row];
    const float* o = out + static_cast<size_t>(q) * hd;
    if (!view.sees(u.split)) continue;
    if (view.splits() == 1) {
      bf16* target = c.out + (static_cast<size_t>(row) * c.heads + kv_head * group + q % group) * hd;
      Floats inverse = broadcast(1.0f / sums[q]);
      for (int d = 0; d < hd; d += 16) store_bf16(target + d, load(o + d) * inverse);
    } else {
      c.maxima[to + q] = maxima[q];
      c.sums[to + q] = sums[q];
      for (int d = 0; d < hd; d += 16) store(c.partial + (to + q) * hd + d, load(o + d));
    }
  }
}

// Merges the splits of a KV head's queries; the `block`th 16 of them, one to a lane:
// out = sum_s e^(m_s - m) o_s / sum_s e^(m_s - m) l_s, with split s's maximum m_s, sum l_s and output o_s.
inline void merge_splits(const AttentionCall& c, const AttentionPlan& plan, int kv_head, int block,
                         AttentionScratch& scratch) {
  int hd = c.shape.head_dim, group = c.group(), first = block * kMergedAtOnce, most = 0;
  int queries = std::min(c.rows * group - first, kMergedAtOnce);
  alignas(64) int firsts[kMergedAtOnce] = {}, stops[kMergedAtOnce] = {}, apart[kMergedAtOnce] = {};
  bool any = false;
  for (int q = 0; q < queries; ++q) {
    const RowView& row = plan.rows[(first + q) / group];
    firsts[q] = row.first_split();
    stops[q] = row.end_split();
    apart[q] = row.apart();
    most = std::max(most, stops[q]);
    any = any || row.splits() > 1;
  }
  if (!any) return;
  size_t from = c.first_query(kv_head, 0) + first, stride = c.split_queries();
  Ints from_split = load(firsts), to_split = load(stops), also_first = load(apart);
  auto has = [&](int s) -> Mask {
    return (greater(to_split, broadcast(s)) & at_least(broadcast(s), from_split)) | greater(also_first, broadcast(s));
  };
  auto those_of = [&](const float* all, int s) {  // zeros for queries that the split isn't of
    return select(has(s), load_first(all + s * stride + from, queries), zeros());
  };
  Floats high = broadcast(-INFINITY), total = zeros();
  for (int s = 0; s < most; ++s) high = select(has(s), maximum(high, those_of(c.maxima, s)), high);
  float* factors = scratch.factors.ensure(static_cast<size_t>(most) * kMergedAtOnce);
  for (int s = 0; s < most; ++s) {
    Floats factor = exponential(those_of(c.maxima, s) - high);
    total = select(has(s), fmadd(factor, those_of(c.sums, s), total), total);
    store(factors + s * kMergedAtOnce, factor);
  }
  alignas(64) float inverse[kMergedAtOnce];
  store(inverse, broadcast(1.0f) / total);
  for (int q = 0; q < queries; ++q) {
    if (stops[q] - firsts[q] + apart[q] <= 1) continue;
    int row = (first + q) / group, head = kv_head * group + (first + q) % group;
    bf16* out = c.out + (static_cast<size_t>(row) * c.heads + head) * hd;
    for (int d = 0; d < hd; d += 32) {
      Floats left = zeros(), right = left;
      for (int s = apart[q] ? 0 : firsts[q]; s < stops[q]; s = std::max(s + 1, firsts[q])) {
        const float* o = c.partial + (s * stride + from + q) * hd + d;
        Floats factor = broadcast(factors[s * kMergedAtOnce + q]);
        left = fmadd(factor, load(o), left);
        right = fmadd(factor, load(o + 16), right);
      }
      store_bf16(out + d, left * broadcast(inverse[q]));
      store_bf16(out + d + 16, right * broadcast(inverse[q]));
    }
  }
}

}  // namespace fledge
