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
  int length;  // the longest row's
};

struct AttentionPlan {
  std::vector<RowView> rows;
  std::vector<Unit> units;
  int max_splits = 1;

  void build(const BatchView& b) {
    rows.resize(b.rows);
    units.clear();
    max_splits = 1;
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
      for (int i = b.row_start[r]; i < b.row_start[r + 1]; i += kRowsPerUnit) {
        int n = b.row_start[r + 1] - i < kRowsPerUnit ? b.row_start[r + 1] - i : kRowsPerUnit;
        Unit u{r, i, n, 0, true, 0};
        for (int j = i; j < i + n; ++j) {
          u.contiguous = u.contiguous && rows[j].contiguous;
          if (rows[j].length > u.length) u.length = rows[j].length;
        }
        int splits = (u.length + kSplit - 1) / kSplit;
        if (splits > max_splits) max_splits = splits;
        for (u.split = 0; u.split < splits; ++u.split) units.push_back(u);
      }
    }
  }
};

struct AttentionScratch {  // per thread
  Buffer<bf16> query, weights, tile, value;
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

// Weighs one query's scores: weights[lane] = exp(scale * (s - max)) for lane < count, 0 up to `padded`.
inline void soften(const float* scores, int count, int padded, float scale, bf16* weights, float* max, float* sum) {
  __m512 best = _mm512_set1_ps(-INFINITY);
  for (int i = 0; i < count; i += 16) {
    __mmask16 live = count - i >= 16 ? 0xffff : static_cast<__mmask16>((1u << (count - i)) - 1);
    best = _mm512_mask_max_ps(best, live, best, _mm512_loadu_ps(scores + i));
  }
  *max = _mm512_reduce_max_ps(best) * scale;
  __m512 high = _mm512_set1_ps(*max), total = _mm512_setzero_ps(), factor = _mm512_set1_ps(scale);
  for (int i = 0; i < padded; i += 16) {
    int left = count - i;
    __mmask16 live = left >= 16 ? 0xffff : (left <= 0 ? 0 : static_cast<__mmask16>((1u << left) - 1));
    __m512 e = _mm512_maskz_mov_ps(live, exp512(_mm512_fmsub_ps(_mm512_loadu_ps(scores + i), factor, high)));
    total = _mm512_add_ps(total, e);
    store_bf16(weights + i, e);
  }
  *sum = _mm512_reduce_add_ps(total);
}

// One unit: up to 16 rows of a request, one KV head with its group of query heads, one split of the sequence.
inline void attend(const AttentionCall& c, const AttentionPlan& plan, const BatchView& b, const Unit& u, int kv_head,
                   AttentionScratch& scratch) {
  int hd = c.shape.head_dim, group = c.heads / c.shape.kv_heads, per_tile = kTileLanes / group;
  int tiles = (u.rows + per_tile - 1) / per_tile, last = (u.rows - (tiles - 1) * per_tile) * group, prefix = b.prefix_length[u.request];
  int lanes = (tiles - 1) * kTileLanes + last;
  int begin = u.split * kSplit, end = u.length < begin + kSplit ? u.length : begin + kSplit;
  int blocks = (end - begin + kPage - 1) / kPage;
  int shared = u.contiguous ? blocks : (prefix - begin) / kPage;
  shared = shared < 0 ? 0 : (shared > blocks ? blocks : shared);

  bf16* query = scratch.query.ensure(static_cast<size_t>(kRowsPerUnit) * 16 * hd);
  float* scores = scratch.scores.ensure(static_cast<size_t>(kRowsPerUnit) * 16 * kSplit);
  bf16* weights = scratch.weights.ensure(static_cast<size_t>(kRowsPerUnit) * 16 * kSplit);
  float* out = scratch.out.ensure(static_cast<size_t>(kRowsPerUnit + 1) * 16 * hd);  // a block may start at any row
  float maxima[kRowsPerUnit * 16], sums[kRowsPerUnit * 16];
  auto lane = [&](int row, int g) { return row / per_tile * kTileLanes + row % per_tile * group + g; };
  auto lanes_of = [&](int t) { return t + 1 < tiles ? per_tile * group : last; };
  auto page = [&](int index) { return c.kv + c.shape.page(c.layer, b.page_of(u.request, index), kv_head); };

  for (int r = 0; r < u.rows; ++r)
    std::memcpy(query + static_cast<size_t>(lane(r, 0)) * hd,
                c.query + (static_cast<size_t>(u.first_row + r) * c.heads + kv_head * group) * hd, group * hd * 2);
  auto score_page = [&](int index, float* to, int stride, Ahead ahead) {
    for (int t = 0; t < tiles; ++t)
      multiply_panel(query + static_cast<size_t>(t) * kTileLanes * hd, hd, lanes_of(t), page(index), hd,
                     to + static_cast<size_t>(t) * kTileLanes * stride, stride, t == 0 ? ahead : Ahead{});
  };
  // Memory never waits: while keys are scored their values are asked for, and while values are added the keys of the next
  // KV head or split, whose turn it is after this one.
  int half_bytes = static_cast<int>(c.shape.half() * sizeof(bf16));
  auto values_of = [&](int k) { return page(begin + k * kPage) + c.shape.half(); };
  auto values_ahead = [&](int k) { return Ahead{reinterpret_cast<const char*>(values_of(k)), half_bytes / (hd / 2)}; };
  bool other_head = kv_head + 1 < c.shape.kv_heads, last_unit = &u == &plan.units.back();
  const Unit& next = other_head || last_unit ? u : *(&u + 1);
  auto keys_ahead = [&](int k) {
    int index = next.split * kSplit + k * kPage;
    if (index >= next.length || (!other_head && last_unit)) return Ahead{};
    const bf16* keys = c.kv + c.shape.page(c.layer, b.page_of(next.request, index), other_head ? kv_head + 1 : 0);
    return Ahead{reinterpret_cast<const char*>(keys), half_bytes / (kPage / 2)};
  };
  for (int k = 0; k < shared; ++k) score_page(begin + k * kPage, scores + k * kPage, kSplit, values_ahead(k));

  // Tree rows: score the window's slots once, then pick each row's ancestors.
  int window_base = prefix / kPage * kPage;
  constexpr int kWindowLanes = kMaxWindow + kPage;
  float* window = scratch.window_scores.ensure(static_cast<size_t>(kRowsPerUnit) * 16 * kWindowLanes);
  if (shared < blocks) {
    int highest = 0;
    for (int r = 0; r < u.rows; ++r) {
      int top = 63 - __builtin_clzll(plan.rows[u.first_row + r].mask | 1);
      if (top > highest) highest = top;
    }
    for (int base = window_base; base <= prefix + highest; base += kPage)
      score_page(base, window + (base - window_base), kWindowLanes, {});
  }
  for (int r = 0; r < u.rows; ++r) {
    const RowView& row = plan.rows[u.first_row + r];
    int count = row.length < end ? row.length - begin : end - begin;
    for (int g = 0; g < group; ++g) {
      int q = lane(r, g);
      float* s = scores + static_cast<size_t>(q) * kSplit;
      bf16* w = weights + static_cast<size_t>(q) * kSplit;
      if (count <= 0) {
        std::memset(w, 0, blocks * kPage * 2);
        maxima[q] = -INFINITY;
        sums[q] = 0;
        continue;
      }
      if (shared < blocks) {
        const float* ws = window + static_cast<size_t>(q) * kWindowLanes;
        int i = begin + shared * kPage;
        for (; i < prefix && i < begin + count; ++i) s[i - begin] = ws[i - window_base];
        uint64_t mask = row.mask;
        for (int logical = prefix; mask; ++logical, mask &= mask - 1)
          if (logical >= i && logical < begin + count)
            s[logical - begin] = ws[prefix + __builtin_ctzll(mask) - window_base];
      }
      soften(s, count, blocks * kPage, c.scale, w, &maxima[q], &sums[q]);
    }
  }

  std::memset(out, 0, static_cast<size_t>(lanes + 15) / 16 * 16 * hd * sizeof(float));
  for (int t = 0; t < tiles; ++t)
    add_values(weights + static_cast<size_t>(t) * kTileLanes * kSplit, kSplit, lanes_of(t), shared,
               values_of, [&](int k) { return t == 0 ? keys_ahead(k) : Ahead{}; },
               out + static_cast<size_t>(t) * kTileLanes * hd, hd);
  if (shared < blocks) {
    bf16* one = scratch.tile.ensure(16 * kPage);
    bf16* gathered = scratch.value.ensure(c.shape.half());
    for (int r = 0; r < u.rows; ++r) {
      const RowView& row = plan.rows[u.first_row + r];
      int count = (row.length < end ? row.length : end) - begin;
      int q = lane(r, 0);
      int path[kMaxWindow], known = 0;  // the window's slots that the row sees, in order
      for (uint64_t mask = row.mask; mask; mask &= mask - 1) path[known++] = prefix + __builtin_ctzll(mask);
      for (int k = shared; k * kPage < count; ++k) {
        int first = begin + k * kPage;
        std::memset(gathered, 0, c.shape.half() * 2);
        for (int at = first; at < first + kPage && at < row.length; at += 2) {
          int left = at < prefix ? at : path[at - prefix];
          int right = at + 1 < row.length ? (at + 1 < prefix ? at + 1 : path[at + 1 - prefix]) : left;  // else its weight is 0
          const bf16* low = page(left) + c.shape.half() + value_offset(left % kPage & ~1, 0);
          const bf16* high = page(right) + c.shape.half() + value_offset(right % kPage & ~1, 0);
          for (int d = 0; d < hd; d += 16)
            _mm512_storeu_si512(gathered + value_offset(at - first, d),
                                pair_values(low + value_offset(0, d), left % 2, high + value_offset(0, d), right % 2));
        }
        std::memset(one, 0, 16 * kPage * 2);
        for (int g = 0; g < group; ++g)
          std::memcpy(one + g * kPage, weights + static_cast<size_t>(q + g) * kSplit + k * kPage, kPage * 2);
        add_values(one, kPage, group, 1, [&](int) { return gathered; }, [](int) { return Ahead{}; },
                   out + static_cast<size_t>(q) * hd, hd);
      }
    }
  }

  for (int r = 0; r < u.rows; ++r) {
    const RowView& row = plan.rows[u.first_row + r];
    if (row.length <= begin) continue;
    for (int g = 0; g < group; ++g) {
      int q = lane(r, g), head = kv_head * group + g;
      const float* o = out + static_cast<size_t>(q) * hd;
      if (row.length <= kSplit) {
        bf16* target = c.out + static_cast<size_t>(u.first_row + r) * c.out_stride + head * hd;
        __m512 inverse = _mm512_set1_ps(1.0f / sums[q]);
        for (int d = 0; d < hd; d += 16) store_bf16(target + d, _mm512_mul_ps(_mm512_loadu_ps(o + d), inverse));
      } else {
        float* part = c.partial +
            ((static_cast<size_t>(u.first_row + r) * c.heads + head) * plan.max_splits + u.split) * (hd + 2);
        part[0] = maxima[q];
        part[1] = sums[q];
        std::memcpy(part + 2, o, hd * sizeof(float));
      }
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
