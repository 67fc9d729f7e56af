// Runs the kernels on random weights and prints what they compute, a line for each result, for test_arm64.py to compare
// between processors.
#include <cstdio>

#include "models.h"
#include "screen.h"

using namespace fledge;

extern "C" {
int fledge_start(int threads);
Weight* fledge_weight(int outputs, int inputs, const int* described, int parts);
void fledge_pack_numbers(Weight* w, int first, int rows, const bf16* numbers);
void fledge_pack_codes(Weight* w, int first, int rows, const uint8_t* values, const uint16_t* scale,
                       const uint16_t* minimum);
void fledge_multiply(const bf16* a, int rows, const Weight* w, float* out);
void fledge_sample(const float* logits, int64_t rows, int64_t vocabulary, const float* temperature,
                   const int64_t* top_k, const float* top_p, const float* min_p, const int64_t* coins, int64_t* out);
}

namespace {

uint64_t state = 1;
float random_number() {  // in [-1, 1)
  state = state * 6364136223846793005u + 1442695040888963407u;
  return static_cast<float>(state >> 40) / (1 << 23) - 1;
}
std::vector<float> floats(size_t count, float middle, float spread) {
  std::vector<float> out(count);
  for (float& x : out) x = middle + spread * random_number();
  return out;
}
std::vector<bf16> numbers(size_t count, float spread) {  // cut off, not rounded: the same everywhere
  std::vector<bf16> out(count);
  for (bf16& x : out) {
    float value = spread * random_number();
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    x = static_cast<bf16>(bits >> 16);
  }
  return out;
}
template <class Values>
void print(const char* name, const Values& values, size_t first, size_t count) {
  std::printf("%s", name);
  for (size_t i = first; i < first + count; ++i) std::printf(" %.9g", static_cast<double>(values[i]));
  std::printf("\n");
}

Weight* pack(const std::vector<bf16>& weight, int outputs, int inputs) {
  int described[] = {outputs, 16, 0, 0, 0};
  Weight* packed = fledge_weight(outputs, inputs, described, 1);
  fledge_pack_numbers(packed, 0, outputs, weight.data());
  return packed;
}

// Random codes with scales of 1/64 to 1/32, and minima likewise.
Weight* pack_codes(const Format& f, int outputs, int inputs) {
  int described[] = {outputs, f.bits, f.groups, f.minima, f.minima ? 0 : 1 << (f.bits - 1)};
  Weight* packed = fledge_weight(outputs, inputs, described, 1);
  std::vector<uint8_t> values(static_cast<size_t>(outputs) * inputs);
  for (auto& u : values) u = static_cast<int>((random_number() + 1) * 1024) % (1 << f.bits);
  std::vector<uint16_t> scale(values.size() / kBlock * f.groups), minimum(scale.size());
  for (size_t i = 0; i < scale.size(); ++i) {
    scale[i] = 0x2400 + static_cast<int>((random_number() + 1) * 512) % 1024;
    minimum[i] = scale[i] ^ 0x8000;
  }
  fledge_pack_codes(packed, 0, outputs, values.data(), scale.data(), f.minima ? minimum.data() : nullptr);
  return packed;
}

void products() {
  constexpr int kOutputs = 75, kInputs = 608, kRows = 40;
  auto weight = numbers(kOutputs * kInputs, 1), x = numbers(64 * kInputs, 1);
  std::vector<float> out(kRows * kOutputs);
  for (const Format& f : kFormats) {
    Weight* packed = f.bits == 16 ? pack(weight, kOutputs, kInputs) : pack_codes(f, kOutputs, kInputs);
    for (int rows : {1, 2, 3, 5, 6, 7, kRows}) {
      fledge_multiply(x.data(), rows, packed, out.data());
      print(f.bits == 16 ? "bf16" : "codes", out, 0, rows * kOutputs);
    }
  }
}

void samples() {
  constexpr int kRows = 32, kVocabulary = 1003;
  auto logits = floats(kRows * kVocabulary, 0, 6);
  std::vector<float> temperature(kRows), top_p(kRows), min_p(kRows);
  std::vector<int64_t> top_k(kRows), coins(kRows), out(kRows);
  for (int r = 0; r < kRows; ++r) {
    temperature[r] = r % 4 * 0.5f;
    top_k[r] = r % 3 * 20;
    top_p[r] = r % 5 ? 1 : 0.8f;
    min_p[r] = r % 7 ? 0 : 0.05f;
    coins[r] = (r + 1) * int64_t(2654435761) * 97003;
  }
  fledge_sample(logits.data(), kRows, kVocabulary, temperature.data(), top_k.data(), top_p.data(), min_p.data(),
                coins.data(), out.data());
  print("tokens", out, 0, kRows);
}

// A prompt, then a tree of five nodes and the path 0, 1, 3 of it token by token.
void forwards() {
  constexpr int kHidden = 64, kInner = 96, kHeads = 4, kKvHeads = 2, kDim = 32, kVocabulary = 101, kPrompt = 300;
  constexpr int kQkv = (kHeads + 2 * kKvHeads) * kDim, kPositions = 512, kPages = kPositions / kPage, kNodes = 5;
  auto packed = [](int outputs, int inputs, float spread = 0.2f) {
    return pack(numbers(static_cast<size_t>(outputs) * inputs, spread), outputs, inputs);
  };
  auto norm = floats(kHidden, 1, 0.1f), cos = floats(kPositions * kDim / 2, 0, 1), sin = cos;
  for (size_t i = 0; i < sin.size(); ++i) sin[i] = std::sqrt(1 - cos[i] * cos[i]);
  std::vector<Layer> layers(2);
  for (Layer& l : layers) {
    l = Layer{};
    l.input_norm = l.post_norm = norm.data();
    l.qkv = packed(kQkv, kHidden);
    l.o = packed(kHidden, kHeads * kDim);
    l.gate_up = pack_codes(kFormats[5], 2 * kInner, kHidden);
    l.down = packed(kHidden, kInner);
    l.cos = cos.data();
    l.sin = sin.data();
  }
  layers[1].windowed = 1;
  Decoder d{};
  d.shape = {kHidden, kInner, kHeads, kKvHeads, kDim, 1e-5f, 0};
  d.layers = 2;
  d.vocabulary = kVocabulary;
  d.layer = layers.data();
  d.embedding = packed(kVocabulary, kHidden, 1);
  d.embedding_scale = 1;
  d.window = 270;
  d.norm = norm.data();
  d.lm_head = packed(kVocabulary, kHidden, 1);
  std::vector<bf16> kv(2 * kPages * kKvHeads * 2 * kPage * kDim);
  std::vector<int> table(kPages);
  for (int p = 0; p < kPages; ++p) table[p] = kPages - 1 - p;

  auto forward = [&](std::vector<bf16>& pool, std::vector<int> tokens, std::vector<int> positions, int prefix,
                     const uint64_t* masks, const char* name) {
    int rows = static_cast<int>(tokens.size()), start[] = {0, rows}, offset = 0;
    Batch b{rows, 1, kPages, tokens.data(), positions.data(), start, &prefix, &offset, table.data(), masks};
    std::vector<float> logits(static_cast<size_t>(rows) * kVocabulary);
    std::vector<int64_t> chosen(rows);
    DecoderOutputs out{};
    out.count = rows;
    out.logits = logits.data();
    out.chosen = chosen.data();
    fledge_decoder_forward(&d, &b, pool.data(), kPages, &out);
    for (int r = 0; r < rows && name; ++r) print(name, logits, r * kVocabulary, kVocabulary);
    if (name) print("tokens", chosen, 0, rows);
  };
  std::vector<int> prompt(kPrompt), at(kPrompt);
  for (int i = 0; i < kPrompt; ++i) prompt[i] = i * 7 % kVocabulary, at[i] = i;
  forward(kv, prompt, at, 0, nullptr, nullptr);
  uint64_t masks[kNodes] = {0b1, 0b11, 0b101, 0b1011, 0b10101};
  auto of_tree = kv;
  forward(of_tree, {3, 14, 15, 92, 65}, {kPrompt, kPrompt + 1, kPrompt + 1, kPrompt + 2, kPrompt + 2}, kPrompt, masks,
          "tree");
  int token[] = {3, 14, 92};
  for (int i = 0; i < 3; ++i) forward(kv, {token[i]}, {kPrompt + i}, kPrompt + i, nullptr, "step");
}

}  // namespace

int main() {
  if (fledge_start(2)) return 1;
  products();
  samples();
  forwards();
}
