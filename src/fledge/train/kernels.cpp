// Elementwise work of training in bf16: each function is one pass over memory where torch needs several.
//
// Plain loops that any compiler vectorises; the torch versions in functions.py, loss.py and attention.py define what
// they compute. Threads are OpenMP's, shared with torch's own pool; results depend on their number only in the order
// in which a norm's gain gradient is summed.
#include "kernels.h"

using namespace fledge;

namespace {

inline float sigmoid(float x) { return 1.0f / (1.0f + fast_exp(std::min(-x, 87.0f))); }

// Turns a row of logits into probabilities, in place; returns its log-sum-exp.
float softmax_row(bf16* row, int64_t width, float* values) {
  float highest = -3e38f, total = 0;
  for (int64_t i = 0; i < width; ++i) {
    values[i] = load(row[i]);
    highest = std::max(highest, values[i]);
  }
  for (int64_t i = 0; i < width; ++i) {
    values[i] = fast_exp(values[i] - highest);
    total += values[i];
  }
  float scale = 1.0f / total;
  for (int64_t i = 0; i < width; ++i) values[i] *= scale;
  return highest + std::log(total);
}

}  // namespace

extern "C" {

// y = x / rms(x) * gain; scale [rows] = 1 / rms(x).
void fledge_rms_norm(const bf16* x, const bf16* gain, bf16* y, float* scale, int64_t rows, int64_t width, float eps,
                     int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t r = 0; r < rows; ++r) {
    const bf16* in = x + r * width;
    bf16* out = y + r * width;
    float sum = 0;
    for (int64_t i = 0; i < width; ++i) sum += load(in[i]) * load(in[i]);
    float s = scale[r] = 1.0f / std::sqrt(sum / width + eps);
    for (int64_t i = 0; i < width; ++i) out[i] = round_bf16(load(in[i]) * s * load(gain[i]));
  }
}

// Writes dx, if it isn't null, and adds the gain's gradient to d_gain [width].
void fledge_rms_norm_back(const bf16* x, const bf16* gain, const float* scale, const bf16* dy, bf16* dx, float* d_gain,
                          int64_t rows, int64_t width, int threads) {
  std::vector<float> partial(static_cast<size_t>(threads) * width, 0.0f);
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (int t = 0; t < threads; ++t) {
    float* mine = partial.data() + t * width;
    for (int64_t r = rows * t / threads; r < rows * (t + 1) / threads; ++r) {
      const bf16 *in = x + r * width, *slope = dy + r * width;
      float s = scale[r], along = 0;
      for (int64_t i = 0; i < width; ++i) {
        float unit = load(in[i]) * s, d = load(slope[i]);
        mine[i] += unit * d;
        along += unit * d * load(gain[i]);
      }
      if (!dx) continue;
      along /= width;
      bf16* out = dx + r * width;
      for (int64_t i = 0; i < width; ++i)
        out[i] = round_bf16((load(slope[i]) * load(gain[i]) - load(in[i]) * s * along) * s);
    }
  }
  for (int t = 0; t < threads; ++t)
    for (int64_t i = 0; i < width; ++i) d_gain[i] += partial[t * width + i];
}

// y [rows, width] = silu(gate) * up for gate_up [rows, 2 * width].
void fledge_swiglu(const bf16* gate_up, bf16* y, int64_t rows, int64_t width, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t r = 0; r < rows; ++r) {
    const bf16 *gate = gate_up + r * 2 * width, *up = gate + width;
    bf16* out = y + r * width;
    for (int64_t i = 0; i < width; ++i) {
      float g = load(gate[i]);
      out[i] = round_bf16(g * sigmoid(g) * load(up[i]));
    }
  }
}

// slope [rows, 2 * width]: the gradients of gate and up.
void fledge_swiglu_back(const bf16* gate_up, const bf16* dy, bf16* slope, int64_t rows, int64_t width, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t r = 0; r < rows; ++r) {
    const bf16 *gate = gate_up + r * 2 * width, *up = gate + width, *d = dy + r * width;
    bf16 *d_gate = slope + r * 2 * width, *d_up = d_gate + width;
    for (int64_t i = 0; i < width; ++i) {
      float g = load(gate[i]), out = load(d[i]), s = sigmoid(g);
      d_up[i] = round_bf16(out * g * s);
      d_gate[i] = round_bf16(out * load(up[i]) * s * (1.0f + g * (1.0f - s)));
    }
  }
}

// RoPE ("rotate half") of rows of `heads` vectors of 2 * half numbers, by cos and sin [rows, half]; direction -1: its
// inverse, which is the gradient's.
void fledge_rope(const bf16* x, int64_t x_stride, bf16* y, int64_t y_stride, const float* cos, const float* sin,
                 float direction, int64_t rows, int64_t heads, int64_t half, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t r = 0; r < rows; ++r) {
    const float *c = cos + r * half, *s = sin + r * half;
    for (int64_t h = 0; h < heads; ++h) {
      const bf16* in = x + r * x_stride + h * 2 * half;
      bf16* out = y + r * y_stride + h * 2 * half;
      for (int64_t i = 0; i < half; ++i) {
        float a = load(in[i]), b = load(in[i + half]), turned = direction * s[i];
        out[i] = round_bf16(a * c[i] - b * turned);
        out[i + half] = round_bf16(b * c[i] + a * turned);
      }
    }
  }
}

// sum += scale * x, over `count` numbers.
void fledge_accumulate(float* sum, const bf16* x, float scale, int64_t count, int threads) {
#pragma omp parallel for simd num_threads(threads) schedule(static)
  for (int64_t i = 0; i < count; ++i) sum[i] += scale * load(x[i]);
}

// y [columns, rows] = x [rows, columns] transposed.
void fledge_transpose(const bf16* x, bf16* y, int64_t rows, int64_t columns, int threads) {
  constexpr int64_t kTile = 32;
  int64_t tiles = (rows + kTile - 1) / kTile;
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t tile = 0; tile < tiles; ++tile) {
    int64_t begin = tile * kTile, end = std::min(rows, begin + kTile);
    for (int64_t first = 0; first < columns; first += kTile) {
      bf16 block[kTile][kTile];
      int64_t last = std::min(columns, first + kTile);
      for (int64_t r = begin; r < end; ++r)
        for (int64_t c = first; c < last; ++c) block[c - first][r - begin] = x[r * columns + c];
      for (int64_t c = first; c < last; ++c)
        std::memcpy(y + c * rows + begin, block[c - first], sizeof(bf16) * (end - begin));
    }
  }
}

// Logits [rows, width] become probabilities, in place.
void fledge_softmax(bf16* logits, int64_t rows, int64_t width, int threads) {
#pragma omp parallel num_threads(threads)
  {
    std::vector<float> values(width);
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; ++r) {
      bf16* row = logits + r * width;
      softmax_row(row, width, values.data());
      for (int64_t i = 0; i < width; ++i) row[i] = round_bf16(values[i]);
    }
  }
}

// Logits become the gradient of the cross-entropy -sum(p log q) of the head's probabilities q to the teacher's p, 0 in
// rows that are not counted. If requested (not null): loss [rows], overlap [rows] = sum of min(p, q), and best [rows],
// the place of the first highest logit.
void fledge_loss_gradient(bf16* logits, const bf16* teacher, const uint8_t* counted, float* loss, float* overlap,
                          int64_t* best, int64_t rows, int64_t width, int threads) {
#pragma omp parallel num_threads(threads)
  {
    std::vector<float> values(width);
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; ++r) {
      bf16* row = logits + r * width;
      const bf16* wanted = teacher + r * width;
      if (best) {
        float highest = load(row[0]);
        for (int64_t i = 1; i < width; ++i) highest = std::max(highest, load(row[i]));
        int64_t place = 0;
        while (load(row[place]) < highest) ++place;
        best[r] = place;
      }
      if (!counted[r] && !loss) {
        std::memset(row, 0, sizeof(bf16) * width);
        continue;
      }
      float log_sum = softmax_row(row, width, values.data());
      if (loss) {
        float along = 0, shared = 0;
        for (int64_t i = 0; i < width; ++i) {
          along += load(wanted[i]) * load(row[i]);
          shared += std::min(load(wanted[i]), values[i]);
        }
        loss[r] = log_sum - along;
        overlap[r] = std::max(shared, 1e-6f);
      }
      if (!counted[r]) {
        std::memset(row, 0, sizeof(bf16) * width);
        continue;
      }
      for (int64_t i = 0; i < width; ++i) row[i] = round_bf16(values[i] - load(wanted[i]));
    }
  }
}

}  // extern "C"
