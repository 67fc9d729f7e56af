// The C interface of what a round does with its draft trees. Called from Python through ctypes, for batches on the CPU.
#include <vector>

#include "tree.h"

using namespace fledge;

extern "C" {

// `speculates` [B], null: all of them take drafts.
void fledge_accept(const int64_t* token_ids, const int64_t* parents, const int64_t* depths, const int64_t* chosen,
                   const bool* speculates, int64_t* emits, int64_t* path, int64_t* emitted, int64_t requests,
                   int64_t nodes, int64_t width) {
  for (int64_t b = 0; b < requests; ++b) {
    int64_t at = b * nodes, to = b * width;
    emits[b] = accept_path(token_ids + at, parents + at, depths + at, chosen + at, nodes, !speculates || speculates[b],
                           width, path + to, emitted + to);
  }
}

// `counts` [B], null: every tree has all its nodes.
void fledge_select(const int64_t* candidate_ids, const float* scores, const int64_t* candidate_depths,
                   const int64_t* expanded, const int64_t* own, const int64_t* counts, int64_t* token_ids,
                   int64_t* parents, int64_t* depths, int64_t* mask, float* log_probs, int64_t requests,
                   int64_t candidates, int64_t groups, int64_t owned, int64_t topk, int64_t nodes) {
  std::vector<int64_t> order(candidates);
  for (int64_t b = 0; b < requests; ++b) {
    Candidates c{candidate_ids + b * (1 + candidates), scores + b * candidates, candidate_depths,
                 expanded + b * groups, own + b * owned, candidates, groups, owned, topk};
    int64_t at = b * nodes, wanted = counts ? std::min(counts[b], nodes - 1) : nodes - 1;
    select_nodes(c, wanted, nodes, order.data(),
                 Nodes{token_ids + at, parents + at, depths + at, mask + at, log_probs + at});
  }
}

}  // extern "C"
