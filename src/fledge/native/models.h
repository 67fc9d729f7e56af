// Target and draft head as their kernels read them, and the calls a round makes with them.
#pragma once
#include "layer.h"

namespace fledge {
struct Screen;
}

struct LayerPointers {
  const float *input_norm, *post_norm, *qkv_bias, *q_norm, *k_norm, *attention_out_norm, *mlp_out_norm;
  const fledge::Packed *qkv, *o, *gate_up, *down;
  const float *cos, *sin;
  int windowed;
};

struct Decoder {
  fledge::Shape shape;
  int layers, vocabulary;
  int feature_layers[3];
  const LayerPointers* layer;
  const fledge::bf16* embedding;
  float embedding_scale;
  int window;  // how many tokens a windowed layer sees, the row's own with them
  const float* norm;
  const fledge::Packed* lm_head;
  const fledge::Screen* screen;  // of the lm_head, for where no logits are wanted
};

struct DecoderOutputs {
  const int* logit_rows;  // null: all
  int64_t count;
  float* logits;             // [count, V] or null
  int64_t* chosen;           // [count], the tokens they choose; or null
  fledge::bf16* features;    // [rows, 3 * hidden] or null
  fledge::bf16* hidden;      // [rows, hidden] or null
  const float* temperature;  // [count], of what is chosen; null: all greedily
  const int64_t* coins;      // [count]
  const uint32_t* allowed;   // [count, ceil(V / 32)], bits of what may be chosen; null: anything
};

struct DraftHead {
  fledge::Shape shape;
  int target_hidden, draft_vocabulary, norm_output, norm_before_residual;
  LayerPointers layer;
  const fledge::bf16* embedding;
  const float *hidden_norm, *norm, *fc_norm;  // fc_norm [3, target_hidden] or null
  const fledge::Packed *fc, *lm_head;
  const int64_t* target_ids;  // [draft_vocabulary]
};

struct HeadOutputs {
  const int* logit_rows;  // null: all
  int64_t count, k;
  const fledge::bf16* features;  // [rows, 3 * target_hidden], or null: `inputs` is given
  const fledge::bf16* inputs;    // [rows, hidden]
  int64_t* token_ids;            // [count, k] target ids
  float* log_probs;              // [count, k]
  fledge::bf16* hidden;          // [count, hidden]
  const float* filters;  // [count, 4]: temperature (0: greedy), top-k, top-p, min-p; null: all are greedy
  const int64_t* coins;  // [count]
  const int64_t* feature_rows;  // [rows], whose features a row takes; null: row r takes the r-th
};

extern "C" {

// `sizes`: rows, requests, pages of a table; `tensors` as in a `ForwardBatch`; `mask` null: causal.
void fledge_decoder_forward(const Decoder* d, const int64_t* sizes, const int** tensors, const uint64_t* mask,
                            fledge::bf16* kv, int64_t pages, const DecoderOutputs* outputs);
void fledge_head_forward(const DraftHead* h, const int64_t* sizes, const int** tensors, const uint64_t* mask,
                         fledge::bf16* kv, int64_t pages, const HeadOutputs* outputs);

// Copies entries between slots; all sources are read before any write.
void fledge_move_kv(fledge::bf16* kv, int layers, int64_t pages, int kv_heads, int head_dim, const int64_t* source,
                    const int64_t* destination, int64_t count);
}
