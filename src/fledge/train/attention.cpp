// The unroll's attention on one block, all but its matrix products, which torch makes; attention.py says what is
// computed.
//
// A block is a rectangle of b conversations by q of their supervised rows, padded. Each row sees step-0 keys of its
// conversation, and its own keys: one for each later step of the unroll. Queries and scores lie as
// [b, kv, q, group, width or keys], so that query heads which share a KV head are neighbours:
//
//     fledge_gather_heads         rows of all S  ->  the block's
//     (scores = query . keys)
//     fledge_attend               scores  ->  weights of step-0 keys and of own keys, one softmax
//     (mixed = weights . values)
//     fledge_attend_finish        mixed + own weights . own values  ->  rows of all S
//
// and likewise for the gradients.
#include "kernels.h"

using namespace fledge;

namespace {

constexpr int64_t kMostSteps = 16, kMostWidth = 256;  // MAX_STEPS and MAX_HEAD_DIM in library.py

}  // namespace

extern "C" {

struct FledgeBlock {
  const int64_t* rows;  // [b * q], supervised row; padding repeats one
  const int32_t* seen;  // [b * q], step-0 keys the row sees; 0: padding
  int64_t b, q, kv, group, width, keys, steps;
  int64_t window, sinks;  // of step-0 keys a row sees the last `window`, 0: all, and the first `sinks`
  int64_t key_stride, value_stride;  // between rows of own keys and values
  const bf16* own_keys[kMostSteps];  // [S, kv * width] of each later step
  const bf16* own_values[kMostSteps];
  int threads;
};

struct Mirrored {
  const char* name;
  int64_t value;
};

// What kernels.py says, too, for native/abi.py to compare when the library is loaded. Ends with a null name.
const Mirrored* fledge_mirrored() {
  static const Mirrored all[] = {{"sizeof(FledgeBlock)", sizeof(FledgeBlock)},
                                 {"MAX_STEPS", kMostSteps},
                                 {"MAX_HEAD_DIM", kMostWidth},
                                 {nullptr, 0}};
  return all;
}

}  // extern "C"

namespace {

inline float dot(const float* a, const bf16* b, int64_t width) {
  float sum = 0;
  for (int64_t i = 0; i < width; ++i) sum += a[i] * load(b[i]);
  return sum;
}

// A query row's place in the block.
struct Place {
  int64_t row, seen, head, first;  // first: of its `group` rows in [b, kv, q, group]
  int64_t kept, start;             // it sees step-0 keys 0 .. kept and start .. seen
  Place(const FledgeBlock& block, int64_t item) {
    int64_t query = item % block.q, rest = item / block.q;
    head = rest % block.kv;
    int64_t flat = rest / block.kv * block.q + query;
    row = block.rows[flat];
    seen = block.seen[flat];
    first = item * block.group;
    start = block.window ? std::max<int64_t>(seen - block.window, 0) : 0;
    kept = std::min(block.sinks, start);
  }
};

}  // namespace

extern "C" {

// The block's rows of x, times scale, as [b, kv, q, group, width] in float32 and, if not null, in bf16.
void fledge_gather_heads(const bf16* x, int64_t stride, const int64_t* rows, float* high, bf16* low, float scale,
                         int64_t b, int64_t q, int64_t kv, int64_t group, int64_t width, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t item = 0; item < b * kv * q; ++item) {
    int64_t query = item % q, head = item / q % kv, conversation = item / q / kv, count = group * width;
    const bf16* in = x + rows[conversation * q + query] * stride + head * count;
    float* out = high + item * count;
    for (int64_t i = 0; i < count; ++i) out[i] = scale * load(in[i]);
    if (low)
      for (int64_t i = 0; i < count; ++i) low[item * count + i] = round_bf16(out[i]);
  }
}

// One softmax over the given scores [.., keys] of the step-0 keys and those of the own keys, computed here.
void fledge_attend(const FledgeBlock* p, const float* query, const float* scores, bf16* weights, float* own_weights,
                   float* log_sum) {
  const FledgeBlock& block = *p;
#pragma omp parallel num_threads(block.threads)
  {
    std::vector<float> values(block.keys);
#pragma omp for schedule(static)
    for (int64_t item = 0; item < block.b * block.kv * block.q; ++item) {
      Place place(block, item);
      for (int64_t g = 0; g < block.group; ++g) {
        int64_t r = place.first + g;
        const float *score = scores + r * block.keys, *q = query + r * block.width;
        bf16* weight = weights + r * block.keys;
        float* own = own_weights + r * block.steps;
        std::memset(weight + place.seen, 0, sizeof(bf16) * (block.keys - place.seen));
        if (!place.seen) continue;
        std::memset(weight + place.kept, 0, sizeof(bf16) * (place.start - place.kept));
        float highest = score[place.start], total = 0;
        for (int64_t i = 0; i < place.kept; ++i) highest = std::max(highest, score[i]);
        for (int64_t i = place.start; i < place.seen; ++i) highest = std::max(highest, score[i]);
        for (int64_t s = 0; s < block.steps; ++s) {
          const bf16* key = block.own_keys[s] + place.row * block.key_stride + place.head * block.width;
          own[s] = dot(q, key, block.width);
          highest = std::max(highest, own[s]);
        }
        auto weigh = [&](int64_t low, int64_t high) {
          for (int64_t i = low; i < high; ++i) {
            values[i] = fast_exp(score[i] - highest);
            total += values[i];
          }
        };
        weigh(0, place.kept);
        weigh(place.start, place.seen);
        for (int64_t s = 0; s < block.steps; ++s) total += own[s] = fast_exp(own[s] - highest);
        float scale = 1.0f / total;
        for (int64_t i = 0; i < place.kept; ++i) weight[i] = round_bf16(values[i] * scale);
        for (int64_t i = place.start; i < place.seen; ++i) weight[i] = round_bf16(values[i] * scale);
        for (int64_t s = 0; s < block.steps; ++s) own[s] *= scale;
        log_sum[(place.row * block.kv + place.head) * block.group + g] = highest + std::log(total);
      }
    }
  }
}

// output [S, heads * width] = weights @ values (mixed) + own weights * own values.
void fledge_attend_finish(const FledgeBlock* p, const bf16* mixed, const float* own_weights, bf16* output) {
  const FledgeBlock& block = *p;
#pragma omp parallel for num_threads(block.threads) schedule(static)
  for (int64_t item = 0; item < block.b * block.kv * block.q; ++item) {
    Place place(block, item);
    if (!place.seen) continue;
    for (int64_t g = 0; g < block.group; ++g) {
      int64_t r = place.first + g;
      const bf16* in = mixed + r * block.width;
      bf16* out = output + ((place.row * block.kv + place.head) * block.group + g) * block.width;
      float sum[kMostWidth];
      for (int64_t i = 0; i < block.width; ++i) sum[i] = load(in[i]);
      for (int64_t s = 0; s < block.steps; ++s) {
        const bf16* value = block.own_values[s] + place.row * block.value_stride + place.head * block.width;
        float weight = own_weights[r * block.steps + s];
        for (int64_t i = 0; i < block.width; ++i) sum[i] += weight * load(value[i]);
      }
      for (int64_t i = 0; i < block.width; ++i) out[i] = round_bf16(sum[i]);
    }
  }
}

// The backward pass up to its products. From the scores and the gradients of the weights: the weights again and the
// gradients of the scores, in bf16; the gradients of own keys and values [S, kv * width]; and the part of the query's
// gradient that comes from own keys, [.., width].
void fledge_attend_back(const FledgeBlock* p, const float* query, const float* slope, const bf16* output,
                        const float* log_sum, const float* scores, const float* d_weights, bf16* weights,
                        bf16* d_scores, float* d_query, bf16* const* d_own_keys, bf16* const* d_own_values) {
  const FledgeBlock& block = *p;
  int64_t width = block.width;
#pragma omp parallel for num_threads(block.threads) schedule(static)
  for (int64_t item = 0; item < block.b * block.kv * block.q; ++item) {
    Place place(block, item);
    float d_key[kMostSteps][kMostWidth], d_value[kMostSteps][kMostWidth];
    for (int64_t s = 0; s < block.steps; ++s) {
      std::memset(d_key[s], 0, sizeof(float) * width);
      std::memset(d_value[s], 0, sizeof(float) * width);
    }
    for (int64_t g = 0; g < block.group; ++g) {
      int64_t r = place.first + g, head = (place.row * block.kv + place.head) * block.group + g;
      bf16 *weight = weights + r * block.keys, *d_score = d_scores + r * block.keys;
      std::memset(weight + place.seen, 0, sizeof(bf16) * (block.keys - place.seen));
      std::memset(d_score + place.seen, 0, sizeof(bf16) * (block.keys - place.seen));
      std::memset(weight + place.kept, 0, sizeof(bf16) * (place.start - place.kept));
      std::memset(d_score + place.kept, 0, sizeof(bf16) * (place.start - place.kept));
      if (!place.seen) continue;
      const float *q = query + r * width, *d = slope + r * width;
      float along = dot(d, output + head * width, width), *dq = d_query + r * width;
      std::memset(dq, 0, sizeof(float) * width);
      for (int64_t s = 0; s < block.steps; ++s) {
        const bf16* key = block.own_keys[s] + place.row * block.key_stride + place.head * width;
        const bf16* value = block.own_values[s] + place.row * block.value_stride + place.head * width;
        float w = fast_exp(dot(q, key, width) - log_sum[head]);
        float ds = w * (dot(d, value, width) - along);
        for (int64_t i = 0; i < width; ++i) {
          dq[i] += ds * load(key[i]);
          d_key[s][i] += ds * q[i];
          d_value[s][i] += w * d[i];
        }
      }
      const float *score = scores + r * block.keys, *dw = d_weights + r * block.keys;
      auto slopes = [&](int64_t low, int64_t high) {
        for (int64_t i = low; i < high; ++i) {
          float w = fast_exp(score[i] - log_sum[head]);
          weight[i] = round_bf16(w);
          d_score[i] = round_bf16(w * (dw[i] - along));
        }
      };
      slopes(0, place.kept);
      slopes(place.start, place.seen);
    }
    if (!place.seen) continue;
    for (int64_t s = 0; s < block.steps; ++s) {
      int64_t start = (place.row * block.kv + place.head) * width;
      for (int64_t i = 0; i < width; ++i) d_own_keys[s][start + i] = round_bf16(d_key[s][i]);
      for (int64_t i = 0; i < width; ++i) d_own_values[s][start + i] = round_bf16(d_value[s][i]);
    }
  }
}

// d_query [S, heads * width] = (mixed, which is d_scores @ keys, + the part from own keys) * scale.
void fledge_attend_back_finish(const FledgeBlock* p, const bf16* mixed, const float* from_own, float scale,
                               bf16* d_query) {
  const FledgeBlock& block = *p;
#pragma omp parallel for num_threads(block.threads) schedule(static)
  for (int64_t item = 0; item < block.b * block.kv * block.q; ++item) {
    Place place(block, item);
    if (!place.seen) continue;
    int64_t count = block.group * block.width, start = place.first * block.width;
    bf16* out = d_query + (place.row * block.kv + place.head) * count;
    for (int64_t i = 0; i < count; ++i) out[i] = round_bf16((load(mixed[start + i]) + from_own[start + i]) * scale);
  }
}

}  // extern "C"
