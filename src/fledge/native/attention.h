// Tree attention over paged keys and values.
//
//     logical index   0 ................ L-1   L   L+1  ...          L = committed prefix
//     slot index      0 ................ L-1   L + (the row's visible window entries, in order)
//
// A row attends a *logical* sequence: the prefix, then its own ancestors in the window. All sums run over logical
// indices in fixed blocks (32 keys) and splits (256 keys), so the result depends only on the row's own sequence: a tree
// node gets, bit for bit, what plain decode gives the same token later. Splits are merged by log-sum-exp
// (flash decoding). Rows whose window is contiguous (plain decode, prefill, chains) need no gathering.
//
// A page holds 32 entries of one KV head in the layout AMX multiplies: keys as [d-pair][key] tiles, values as
// [key-pair][d] tiles.
#pragma once
#include "gemm.h"

namespace fledge {

constexpr int kPage = 32;
constexpr int kSplit = 256;
constexpr int kRowsPerUnit = 16;
constexpr int kMaxWindow = 64;

struct KvShape {
  int layers, pages, kv_heads, head_dim;
  size_t half() const { return static_cast<size_t>(kPage) * head_dim; }  // elements of a page's keys
  size_t page(int layer, int page_id, int head) const {
    return ((static_cast<size_t>(layer) * pages + page_id) * kv_heads + head) * 2 * half();
  }
};

inline size_t key_offset(int entry, int d) {
  int tile = (d / 32) * 2 + entry / 16;
  return static_cast<size_t>(tile) * 512 + (d % 32) / 2 * 32 + (entry % 16) * 2 + d % 2;
}
inline size_t value_offset(int entry, int d) {
  return static_cast<size_t>(d / 16) * 512 + (entry / 2) * 32 + (d % 16) * 2 + entry % 2;
}
inline void write_key(bf16* page, int entry, const bf16* key, int head_dim) {
  for (int d = 0; d < head_dim; d += 2)
    std::memcpy(page + key_offset(entry, d), key + d, 4);
}
inline void write_value(bf16* page, int entry, const bf16* value, int head_dim) {
  for (int d = 0; d < head_dim; d += 16) {
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(value + d)));
    if (entry % 2) wide = _mm512_slli_epi32(wide, 16);
    _mm512_mask_storeu_epi16(page + value_offset(entry & ~1, d), entry % 2 ? 0xaaaaaaaa : 0x55555555, wide);
  }
}
// 16 dimensions' values of two entries side by side, as a page holds them: `a` and `b` are the lines the entries lie in.
inline __m512i pair_values(const bf16* a, bool a_odd, const bf16* b, bool b_odd) {
  __m512i low = _mm512_loadu_si512(a), high = _mm512_loadu_si512(b);
  low = a_odd ? _mm512_srli_epi32(low, 16) : _mm512_and_si512(low, _mm512_set1_epi32(0xffff));
  high = b_odd ? _mm512_andnot_si512(_mm512_set1_epi32(0xffff), high) : _mm512_slli_epi32(high, 16);
  return _mm512_or_si512(low, high);
}

struct BatchView {
  int rows = 0, requests = 0, max_pages = 0;
  const int *token_ids = nullptr, *positions = nullptr, *row_start = nullptr, *prefix_length = nullptr,
            *window_offset = nullptr, *page_table = nullptr;
  const uint64_t* window_mask = nullptr;
  int page_of(int request, int index) const { return page_table[request * max_pages + index / kPage]; }
};

// What a row sees, worked out once per forward.
struct RowView {
  int request, index;   // where it is written
  int length;           // logical sequence length, itself included
  bool contiguous;      // slots in logical order
  uint64_t mask;
};

struct Unit {
  int request, first_row, rows, split;
  bool contiguous;
  int length;    // the longest row's
  int part = 0, parts = 1;  // its number among the split's units, and how many those are
  int next_split = 0;       // the first unit of the next split or request; 0: there is none
  int begin() const { return split * kSplit; }
  int end() const { return length < begin() + kSplit ? length : begin() + kSplit; }
};

struct AttentionPlan {
  std::vector<RowView> rows;
  std::vector<Unit> units;
  int max_splits = 1;

  void build(const BatchView& b) {
    rows.resize(b.rows);
    units.clear();
    max_splits = 1;
    int previous = 0;  // the first unit of the split before
    for (int r = 0; r < b.requests; ++r) {
      int prefix = b.prefix_length[r];
      for (int i = b.row_start[r]; i < b.row_start[r + 1]; ++i) {
        int slot = b.window_offset[r] + i - b.row_start[r];
        RowView v{r, prefix + slot, prefix + slot + 1, true, 0};
        if (b.window_mask) {
          v.mask = b.window_mask[i];
          v.length = prefix + __builtin_popcountll(v.mask);
          v.contiguous = (v.mask & (v.mask + 1)) == 0;
        }
        rows[i] = v;
      }
      // Splits in order, so that all rows of a request find a split's pages in the caches.
      int splits = 1;
      for (int split = 0; split < splits; ++split) {
        int first = static_cast<int>(units.size());
        for (int i = b.row_start[r]; i < b.row_start[r + 1]; i += kRowsPerUnit) {
          int n = b.row_start[r + 1] - i < kRowsPerUnit ? b.row_start[r + 1] - i : kRowsPerUnit;
          Unit u{r, i, n, split, true, 0};
          for (int j = i; j < i + n; ++j) {
            u.contiguous = u.contiguous && rows[j].contiguous;
            if (rows[j].length > u.length) u.length = rows[j].length;
          }
          if (split * kSplit >= u.length) continue;
          u.part = static_cast<int>(units.size()) - first;
          units.push_back(u);
          int needed = (u.length + kSplit - 1) / kSplit;
          if (needed > splits) splits = needed;
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

struct AttentionScratch {  // per thread
  Buffer<bf16> query, tile, value;
  Buffer<float> scores, window_scores, out;
};

struct AttentionCall {
  KvShape shape;
  bf16* kv;  // the whole pool
  int layer, heads;
  const bf16* query;  // [rows, heads * head_dim]
  bf16* out;          // [rows, heads * head_dim], row stride out_stride
  int out_stride;
  float* partial;     // [rows, heads, max_splits, head_dim + 2]
  float scale;
};

// The next split's pages (behind the last one's those of the next head's first), asked for little by little while this one
// is computed, so that memory never waits and is never flooded; each of a split's units asks for its part. Into L2. Line by
// line of all pages in turn: the processor's own prefetcher follows each of them, and has time to be there first.
struct Upcoming {
  const char* pages[kSplit / kPage];
  int count = 0, half = 0, offset = 0;  // bytes: of a page's keys, and of the next line within a page
  int left = 0;                         // lines of each page
  float lines = 0, owed = 0;            // per unit of time and page, and left over

  Upcoming(const AttentionCall& c, const BatchView& b, const AttentionPlan& plan, const Unit& u, int kv_head, int time) {
    int head = u.next_split ? kv_head : kv_head + 1;
    if (head == c.shape.kv_heads) return;
    const Unit& to = plan.units[u.next_split];
    int all = (to.end() - to.begin() + kPage - 1) / kPage;
    for (int i = all * u.part / u.parts; i < all * (u.part + 1) / u.parts; ++i)
      pages[count++] = reinterpret_cast<const char*>(
          c.kv + c.shape.page(c.layer, b.page_of(to.request, to.begin() + i * kPage), head));
    if (count == 0) return;
    half = static_cast<int>(c.shape.half() * sizeof(bf16));
    left = 2 * half / 64;
    lines = static_cast<float>(left) / time;
  }
  void ask(int time) {
    for (owed += lines * time; owed >= 1 && left > 0; owed -= 1, --left) {
      for (int i = 0; i < count; ++i) _mm_prefetch(pages[i] + offset, _MM_HINT_T1);
      offset = offset < half ? offset + half : offset - half + 64;  // keys and values in turn
    }
  }
};

// Weighs the scores of kQueries queries that see the same sequence: exp(scale * (s - max)) for the first `count`, 0 up to
// `padded`. The weights take the place of the scores; a query's begin `stride` floats behind the one before.
template <int kQueries>
inline void soften_some(float* scores, size_t stride, int count, int padded, float scale, float* max, float* sum,
                        Upcoming& upcoming) {
  int full = count / 32 * 32, padding = padded - (count + 31) / 32 * 32;
  auto live = [&](int i) {
    int left = count - i;
    return left >= 16 ? __mmask16(0xffff) : (left <= 0 ? __mmask16(0) : static_cast<__mmask16>((1u << left) - 1));
  };
  __m512 best[kQueries], high[kQueries], total[kQueries];
  for (int q = 0; q < kQueries; ++q) best[q] = _mm512_set1_ps(-INFINITY);
  auto compare = [&](int i, __mmask16 a, __mmask16 b) {
#pragma GCC unroll 4
    for (int q = 0; q < kQueries; ++q) {
      const float* s = scores + q * stride + i;
      best[q] = _mm512_mask_max_ps(best[q], a, best[q], _mm512_loadu_ps(s));
      best[q] = _mm512_mask_max_ps(best[q], b, best[q], _mm512_loadu_ps(s + 16));
    }
  };
  for (int i = 0; i < full; i += 32) compare(i, 0xffff, 0xffff);
  if (full < count) compare(full, live(full), live(full + 16));
  constexpr float kLog2e = 1.44269504f;
  __m512 factor = _mm512_set1_ps(scale * kLog2e);
#pragma GCC unroll 4
  for (int q = 0; q < kQueries; ++q) {
    max[q] = _mm512_reduce_max_ps(best[q]) * scale;
    high[q] = _mm512_set1_ps(max[q] * kLog2e);
    total[q] = _mm512_setzero_ps();
  }
  auto weigh = [&](int i, __mmask16 a, __mmask16 b) {
    upcoming.ask(1);
#pragma GCC unroll 4
    for (int q = 0; q < kQueries; ++q) {
      float* s = scores + q * stride;
      __m512 x = _mm512_maskz_mov_ps(a, exp2_roughly(_mm512_fmsub_ps(_mm512_loadu_ps(s + i), factor, high[q])));
      __m512 y = _mm512_maskz_mov_ps(b, exp2_roughly(_mm512_fmsub_ps(_mm512_loadu_ps(s + i + 16), factor, high[q])));
      total[q] = _mm512_add_ps(total[q], _mm512_add_ps(x, y));
      _mm512_storeu_si512(reinterpret_cast<bf16*>(s) + i, (__m512i)_mm512_cvtne2ps_pbh(y, x));
    }
  };
  for (int i = 0; i < full; i += 32) weigh(i, 0xffff, 0xffff);
  if (full < count) weigh(full, live(full), live(full + 16));
#pragma GCC unroll 4
  for (int q = 0; q < kQueries; ++q) {
    if (padding > 0)
      std::memset(reinterpret_cast<bf16*>(scores + q * stride) + padded - padding, 0, padding * sizeof(bf16));
    sum[q] = _mm512_reduce_add_ps(total[q]);
  }
}

// The same for any number of queries: a few at once, so that none waits for its own sums.
inline void soften(float* scores, size_t stride, int queries, int count, int padded, float scale, float* max, float* sum,
                   Upcoming& upcoming) {
  if (count <= 0) {
    for (int q = 0; q < queries; ++q) {
      std::memset(scores + q * stride, 0, padded * sizeof(bf16));
      max[q] = -INFINITY;
      sum[q] = 0;
    }
    return;
  }
  for (int q = 0; q < queries; q += 4) {
    auto some = queries - q >= 4   ? soften_some<4>
                : queries - q == 3 ? soften_some<3>
                : queries - q == 2 ? soften_some<2>
                                   : soften_some<1>;
    some(scores + q * stride, stride, count, padded, scale, max + q, sum + q, upcoming);
  }
}

// One unit: up to 16 rows of a request, one KV head with its group of query heads, one split of the sequence.
//
// Query q is head q % group of row q / group. A few queries are taken through the whole split before the next, so that
// their scores stay in the L1 cache; a query's weights take the place of its scores.
inline void attend(const AttentionCall& c, const AttentionPlan& plan, const BatchView& b, const Unit& u, int kv_head,
                   AttentionScratch& scratch) {
  int hd = c.shape.head_dim, group = c.heads / c.shape.kv_heads, queries = u.rows * group;
  int prefix = b.prefix_length[u.request], begin = u.begin(), end = u.end();
  int blocks = (end - begin + kPage - 1) / kPage;
  int shared = u.contiguous ? blocks : (prefix - begin) / kPage;  // blocks whose slots all rows see in order
  shared = shared < 0 ? 0 : (shared > blocks ? blocks : shared);

  // Not a multiple of 256: rows of such a stride share a few sets of the L1 cache.
  constexpr int kScoreStride = kSplit + 16, kWeightStride = 2 * kScoreStride, kWindowLanes = kMaxWindow + kPage;
  size_t most = (queries < kQueriesAtOnce ? queries : kQueriesAtOnce) + 15;
  float* scores = scratch.scores.ensure(most * kScoreStride);
  bf16* weights = reinterpret_cast<bf16*>(scores);
  float* window = scratch.window_scores.ensure(most * kWindowLanes);
  bf16* query = scratch.query.ensure(static_cast<size_t>(queries + 31) * hd);
  float* out = scratch.out.ensure(static_cast<size_t>(queries + 31) * hd);  // a block may start at any row
  bf16* one = scratch.tile.ensure(16 * kPage);
  bf16* gathered = scratch.value.ensure(c.shape.half());
  float maxima[kRowsPerUnit * 16], sums[kRowsPerUnit * 16];

  for (int r = 0; r < u.rows; ++r)
    std::memcpy(query + static_cast<size_t>(r) * group * hd,
                c.query + (static_cast<size_t>(u.first_row + r) * c.heads + kv_head * group) * hd, group * hd * 2);
  auto page = [&](int index) { return c.kv + c.shape.page(c.layer, b.page_of(u.request, index), kv_head); };

  // What takes about as long as weighing 32 scores of four queries: an eighth of a page's scores, half of its values.
  constexpr int kScoreTime = 8, kValueTime = 2;
  int steps = (queries + 31) / 32;
  Upcoming upcoming(c, b, plan, u, kv_head,
                    u.rows * ((group + 3) / 4) * blocks + steps * blocks * (kScoreTime + kValueTime * (hd / 32)));

  int window_base = prefix / kPage * kPage, highest = 0;
  for (int r = 0; shared < blocks && r < u.rows; ++r) {
    int top = 63 - __builtin_clzll(plan.rows[u.first_row + r].mask | 1);
    if (top > highest) highest = top;
  }

  for (int first = 0; first < queries; first += kQueriesAtOnce) {
    int here = queries - first < kQueriesAtOnce ? queries - first : kQueriesAtOnce;
    auto score_page = [&](int index, float* to, int stride) {
      for (int q = 0; q < here; q += 32) {
        upcoming.ask(kScoreTime);
        multiply_panel(query + static_cast<size_t>(first + q) * hd, hd, here - q < 32 ? here - q : 32, page(index), hd,
                       to + static_cast<size_t>(q) * stride, stride, Ahead{});
      }
    };
    auto values_of = [&](int k) {
      upcoming.ask(kValueTime);
      return page(begin + k * kPage) + c.shape.half();
    };
    // Calls work(row, its first query here, how many of its queries are here, tokens it sees of this split).
    auto each_row = [&](auto&& work) {
      for (int q = first; q < first + here;) {
        int row = q / group, stop = (row + 1) * group < first + here ? (row + 1) * group : first + here;
        const RowView& view = plan.rows[u.first_row + row];
        work(view, q, stop - q, (view.length < end ? view.length : end) - begin);
        q = stop;
      }
    };
    for (int k = 0; k < shared; ++k) score_page(begin + k * kPage, scores + k * kPage, kScoreStride);
    // Tree rows: score the window's slots once, then pick each row's ancestors.
    if (shared < blocks)
      for (int base = window_base; base <= prefix + highest; base += kPage)
        score_page(base, window + (base - window_base), kWindowLanes);
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
      soften(of_row, kScoreStride, some, count, blocks * kPage, c.scale, maxima + q, sums + q, upcoming);
    });
    for (int q = 0; q < here; q += 32)
      multiply_values(weights + static_cast<size_t>(q) * kWeightStride, kWeightStride, here - q < 32 ? here - q : 32, shared,
                      values_of, out + static_cast<size_t>(first + q) * hd, hd, false);
    if (shared == blocks) continue;
    each_row([&](const RowView& row, int q, int some, int count) {
      int path[kMaxWindow], known = 0;  // the window's slots that the row sees, in order
      for (uint64_t mask = row.mask; mask; mask &= mask - 1) path[known++] = prefix + __builtin_ctzll(mask);
      for (int k = shared; k * kPage < count; ++k) {
        int start = begin + k * kPage;
        std::memset(gathered, 0, c.shape.half() * 2);
        for (int at = start; at < start + kPage && at < row.length; at += 2) {
          int left = at < prefix ? at : path[at - prefix];
          int right = at + 1 < row.length ? (at + 1 < prefix ? at + 1 : path[at + 1 - prefix]) : left;  // else its weight is 0
          const bf16* low = page(left) + c.shape.half() + value_offset(left % kPage & ~1, 0);
          const bf16* high = page(right) + c.shape.half() + value_offset(right % kPage & ~1, 0);
          for (int d = 0; d < hd; d += 16)
            _mm512_storeu_si512(gathered + value_offset(at - start, d),
                                pair_values(low + value_offset(0, d), left % 2, high + value_offset(0, d), right % 2));
        }
        std::memset(one, 0, 16 * kPage * 2);
        for (int g = 0; g < some; ++g)
          std::memcpy(one + g * kPage, weights + static_cast<size_t>(q - first + g) * kWeightStride + k * kPage, kPage * 2);
        multiply_values(one, kPage, some, 1, [&](int) { return gathered; }, out + static_cast<size_t>(q) * hd, hd, true);
      }
    });
  }

  for (int q = 0; q < queries; ++q) {
    int row = u.first_row + q / group, head = kv_head * group + q % group, length = plan.rows[row].length;
    const float* o = out + static_cast<size_t>(q) * hd;
    if (length <= begin) continue;
    if (length <= kSplit) {
      bf16* target = c.out + static_cast<size_t>(row) * c.out_stride + head * hd;
      __m512 inverse = _mm512_set1_ps(1.0f / sums[q]);
      for (int d = 0; d < hd; d += 16) store_bf16(target + d, _mm512_mul_ps(_mm512_loadu_ps(o + d), inverse));
    } else {
      float* part = c.partial + ((static_cast<size_t>(row) * c.heads + head) * plan.max_splits + u.split) * (hd + 2);
      part[0] = maxima[q];
      part[1] = sums[q];
      std::memcpy(part + 2, o, hd * sizeof(float));
    }
  }
}

// Merges a row's splits for one head: out = sum_s e^(m_s - m) o_s / sum_s e^(m_s - m) l_s.
inline void merge_splits(const AttentionCall& c, const AttentionPlan& plan, int row, int head) {
  int hd = c.shape.head_dim, splits = (plan.rows[row].length + kSplit - 1) / kSplit;
  if (splits <= 1) return;
  const float* parts = c.partial + (static_cast<size_t>(row) * c.heads + head) * plan.max_splits * (hd + 2);
  float high = -INFINITY, total = 0;
  for (int s = 0; s < splits; ++s) high = parts[s * (hd + 2)] > high ? parts[s * (hd + 2)] : high;
  float factor[1024];
  for (int s = 0; s < splits; ++s) {
    factor[s] = exp1(parts[s * (hd + 2)] - high);
    total += factor[s] * parts[s * (hd + 2) + 1];
  }
  bf16* out = c.out + static_cast<size_t>(row) * c.out_stride + head * hd;
  for (int d = 0; d < hd; d += 16) {
    __m512 sum = _mm512_setzero_ps();
    for (int s = 0; s < splits; ++s)
      sum = _mm512_fmadd_ps(_mm512_set1_ps(factor[s]), _mm512_loadu_ps(parts + s * (hd + 2) + 2 + d), sum);
    store_bf16(out + d, _mm512_mul_ps(sum, _mm512_set1_ps(1.0f / total)));
  }
}

}  // namespace fledge
