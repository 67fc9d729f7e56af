// Runs the kernels on random weights and prints what they compute, a line for each result, for test_arm64.py to compare
// between processors.
#include <cstdio>

#include "models.h"
#include "screen.h"

using namespace fledge;

extern "C" {
int fledge_start(int threads);
Packed* fledge_pack(const bf16* weight, int outputs, int inputs, int interleaved, int int8);
Screen* fledge_pack_screen(const bf16* weight, int outputs, int inputs);
void fledge_multiply(const bf16* a, int rows, const Packed* w, float* out);
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

void products(bool int8) {
  constexpr int kOutputs = 75, kInputs = 608, kRows = 40;
  auto weight = numbers(kOutputs * kInputs, 1), x = numbers(64 * kInputs, 1);
  Packed* packed = fledge_pack(weight.data(), kOutputs, kInputs, 0, int8);
  std::vector<float> out(kRows * kOutputs);
  for (int rows : {1, 2, 3, 5, 6, 7, kRows}) {
    fledge_multiply(x.data(), rows, packed, out.data());
    print(int8 ? "int8" : "bf16", out, 0, rows * kOutputs);
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
  auto pack = [](int outputs, int inputs, bool interleaved = false) {
    return fledge_pack(numbers(static_cast<size_t>(outputs) * inputs, 0.2f).data(), outputs, inputs, interleaved, 0);
  };
  auto norm = floats(kHidden, 1, 0.1f), cos = floats(kPositions * kDim / 2, 0, 1), sin = cos;
  for (size_t i = 0; i < sin.size(); ++i) sin[i] = std::sqrt(1 - cos[i] * cos[i]);
  std::vector<Layer> layers(2);
  for (Layer& l : layers) {
    l = Layer{};
    l.input_norm = l.post_norm = norm.data();
    l.qkv = pack(kQkv, kHidden);
    l.o = pack(kHidden, kHeads * kDim);
    l.gate_up = pack(2 * kInner, kHidden, true);
    l.down = pack(kHidden, kInner);
    l.cos = cos.data();
    l.sin = sin.data();
  }
  layers[1].windowed = 1;
  auto embedding = numbers(kVocabulary * kHidden, 1), lm_head = numbers(kVocabulary * kHidden, 1);
  Decoder d{};
  d.shape = {kHidden, kInner, kHeads, kKvHeads, kDim, 1e-5f, 0};
  d.layers = 2;
  d.vocabulary = kVocabulary;
  d.layer = layers.data();
  d.embedding = embedding.data();
  d.embedding_scale = 1;
  d.window = 270;
  d.norm = norm.data();
  d.lm_head = fledge_pack(lm_head.data(), kVocabulary, kHidden, 0, 0);
  d.screen = fledge_pack_screen(lm_head.data(), kVocabulary, kHidden);
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
  products(false);
  products(true);
  samples();
  forwards();
}
