// What a round does on the host between its forwards, for batches on the CPU: with draft trees (tree.cpp), with
// prompt lookup's proposals (lookup.cpp), and with what requests carry (carried.cpp). Python makes these calls
// through ctypes (engine/native_tree.py says what the arrays are), and so do the rounds (round.h). Each one's
// reference is the torch code next to its caller in the engine, which it equals bit for bit. A batch has B requests,
// a tree N nodes.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>

namespace fledge {

constexpr float kNever = -std::numeric_limits<float>::infinity();  // log probability of what is not to be verified

// What a verify of `rows` rows costs, in tokens: linear between `points` measured ones and beyond the last two, where it
// never falls, and no less than at the first; as `CostCurve.at`.
inline double cost_of(const int64_t* known, const double* costs, int64_t points, int64_t rows) {
  if (points == 1 || rows <= known[0]) return costs[0];
  int64_t right = std::min(std::lower_bound(known, known + points, rows) - known, points - 1);
  double slope = (costs[right] - costs[right - 1]) / double(known[right] - known[right - 1]);
  if (rows > known[right] && slope < 0.0) return costs[right];
  return costs[right - 1] + slope * double(rows - known[right - 1]);
}

}  // namespace fledge

extern "C" {

void fledge_coins(const int64_t* keys, const int64_t* positions, int64_t* coins, int64_t n);
void fledge_accept(const int64_t* token_ids, const int64_t* parents, const int64_t* depths, const int64_t* chosen,
                   const bool* speculates, int64_t* emits, int64_t* path, int64_t* emitted, int64_t requests,
                   int64_t nodes, int64_t width);
void fledge_select(const int64_t* candidate_ids, const float* scores, const int64_t* candidate_depths,
                   const int64_t* expanded, const int64_t* own, const int64_t* counts, int64_t* token_ids,
                   int64_t* parents, int64_t* depths, int64_t* mask, float* log_probs, int64_t requests,
                   int64_t candidates, int64_t groups, int64_t owned, int64_t topk, int64_t nodes);
void fledge_verify_rows(const int64_t* token_ids, const int64_t* depths, const int64_t* mask, const int32_t* length,
                        const int64_t* picked, int32_t* tokens, int32_t* positions, int64_t* masks, int64_t rows,
                        int64_t nodes);
void fledge_path_rows(const int64_t* emits, const int64_t* path, const int64_t* emitted, const int32_t* length,
                      const int64_t* first_row, const int32_t* page_table, int32_t* row_start, int64_t* last,
                      int32_t* positions, int32_t* tokens, int64_t* source, int64_t* from, int64_t* to,
                      int64_t requests, int64_t width, int64_t pages, int64_t page_size);
void fledge_advance(const int64_t* emits, const int64_t* tokens, int32_t* length, int64_t* bonus, int32_t* history,
                    int64_t requests, int64_t width, int64_t known);
void fledge_keep(const int64_t* tokens, const char* features, const int64_t* source, const int32_t* positions,
                 const int32_t* row_start, int64_t* recent_tokens, char* recent_features, int64_t requests,
                 int64_t kept, int64_t row_bytes);
void fledge_some_rows(const int64_t* counts, int32_t* row_start, int64_t* first, int64_t* index, int64_t requests,
                      int64_t width);
void fledge_find_repeats(const int32_t* history, const int32_t* last, const float* log_rates, int64_t* matched,
                         int64_t* proposed, float* log_probs, int64_t requests, int64_t known, int64_t longest,
                         int64_t count);
void fledge_raise(const int64_t* tokens, const float* scores, const int64_t* parents, const int64_t* proposed,
                  const float* rates, int64_t* agreed, int64_t* number, float* score, float* raised, int64_t requests,
                  int64_t candidates, int64_t topk, int64_t count, int64_t level, int64_t first);
void fledge_frontier(const int64_t* children, const float* scores, const int64_t* mask, int64_t* tokens,
                     float* frontier, int64_t* masks, int64_t* numbers, int64_t* rows, int64_t requests, int64_t topk,
                     int64_t level);
void fledge_open_mass(const float* frontier, const float* rates, const int64_t* agreed, const float* score, float* mass,
                      int64_t requests, int64_t topk, int64_t count, int64_t level);
void fledge_fill_slots(const int64_t* proposed, const float* rates, const int64_t* agreed, const int64_t* number,
                       const float* score, int64_t* token_ids, float* scores, int64_t* parents, int64_t requests,
                       int64_t count, int64_t candidates);
void fledge_share_out(const float* scores, const float* calibration, const int64_t* depths, const int64_t* known,
                      const double* costs, int64_t* counts, int64_t requests, int64_t candidates, int64_t most,
                      int64_t points);
}  // extern "C"
