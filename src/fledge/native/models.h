// Target and draft head as the kernels read them, and the calls of their forwards. native/abi.py mirrors the structs.
#pragma once
#include "layer.h"

namespace fledge {
struct Screen;
}

struct Decoder {
  fledge::Shape shape;
  int layers, vocabulary;
  int feature_layers[3];
  const fledge::Layer* layer;
  const fledge::Weight* embedding;
  float embedding_scale;
  int window;  // how many tokens a row sees in windowed layers, its own included
  const float* norm;
  const fledge::Weight* lm_head;
  const fledge::Screen* screen;  // of the lm_head: chooses tokens without logits; null: it has none
};

struct DecoderOutputs {  // what a forward writes; null: not wanted
  const int* logit_rows;  // [count], the rows whose logits or tokens are wanted; null: all
  int64_t count;
  float* logits;             // [count, V]
  int64_t* chosen;           // [count], tokens
  fledge::bf16* features;    // [rows, 3 * hidden]
  fledge::bf16* hidden;      // [rows, hidden], the final norm's output
  const float* filters;      // [count, 4], how tokens are chosen: temperature (0: greedily), top-k, top-p, min-p; null:
                             // all greedily
  const int64_t* coins;      // [count]
  const uint32_t* allowed;   // [count, ceil(V / 32)], bits of what may be chosen; null: anything
};

// In the order of HeadConfig's switches and of HeadWeights' vectors (draft/description.py).
enum HeadSwitch { kFcNorm, kNormOutput, kNormBeforeResidual };
enum HeadVector { kHiddenNorm, kInputNorm, kPostNorm, kNorm, kFcNorms /* [3, target_hidden] */ };
constexpr int kMostHeadVectors = 16, kMostCandidates = 256;

struct DraftHead {
  fledge::Shape shape;
  int target_hidden, draft_vocabulary;
  int switches;       // bits of HeadSwitch
  int window, sinks;  // see fledge::Window
  fledge::Layer layer;
  const fledge::Weight* embedding;
  const fledge::Weight *fc, *lm_head;
  const int64_t* target_ids;  // [draft_vocabulary]
  const float* vectors[kMostHeadVectors];  // null: switched off
  // A row's `candidates` largest estimates, up (down x), give way to exact logits. 0: the lm_head is multiplied.
  int candidates;
  const fledge::Weight *candidate_down, *candidate_up;  // [rank, hidden], [draft_vocabulary, rank]
  const fledge::bf16* lm_head_rows;                     // [draft_vocabulary, hidden], as they are

  bool has(HeadSwitch s) const { return switches >> s & 1; }
};

struct HeadOutputs {  // what a forward reads besides the batch, and what it writes
  const int* logit_rows;  // [count], the rows that propose; null: all
  int64_t count, k;
  const fledge::bf16* features;  // [.., 3 * target_hidden], for extend; null: a draft step, which takes `inputs`
  const fledge::bf16* inputs;    // [rows, hidden]
  int64_t* token_ids;            // [count, k] target ids
  float* log_probs;              // [count, k]
  fledge::bf16* hidden;          // [count, hidden]
  const float* filters;          // [count, 4]: temperature (0: greedy), top-k, top-p, min-p; null: all greedy
  const int64_t* coins;          // [count]
  const int64_t* feature_rows;   // [rows], which of `features` a row takes; null: row r takes the r-th
};

extern "C" {

// Keys and values are written into `kv`, a pool of `pages` pages.
void fledge_decoder_forward(const Decoder* d, const fledge::Batch* batch, fledge::bf16* kv, int64_t pages,
                            const DecoderOutputs* outputs);
void fledge_head_forward(const DraftHead* h, const fledge::Batch* batch, fledge::bf16* kv, int64_t pages,
                         const HeadOutputs* outputs);

// Copies entries between slots; all sources are read before any write.
void fledge_move_kv(fledge::bf16* kv, int layers, int64_t pages, int kv_heads, int head_dim, const int64_t* source,
                    const int64_t* destination, int64_t count);
}
