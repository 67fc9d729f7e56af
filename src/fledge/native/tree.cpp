// What trees become: selected, shared out over requests, accepted.
#include "tree.h"

#include <cmath>
#include <functional>
#include <numeric>

namespace fledge {
namespace {

// Orders places in `scores`, best first: as torch sorts, NaN above all; among equals lower places, which may be
// parents.
struct Better {
  const float* scores;

  bool operator()(int64_t a, int64_t b) const {
    float x = scores[a], y = scores[b];
    if (x > y || (std::isnan(x) && !std::isnan(y))) return true;
    return !(y > x || (std::isnan(y) && !std::isnan(x))) && a < b;
  }
};

}  // namespace

void Growth::begin(const int64_t* tokens, const float* log_probs) {
  frontier.assign(tokens, tokens + topk);
  numbers.assign(1, 0);
  take(tokens, log_probs, topk);
  best.assign(scores, scores + topk);
  above.assign(topk, 0);
  numbers.resize(topk);
  std::iota(numbers.begin(), numbers.end(), 1);
  masks.resize(topk);
  for (int64_t k = 0; k < topk; ++k) masks[k] = int64_t(uint64_t(1) << k);
}

void Growth::add(const int64_t* children, const float* log_probs) {
  std::vector<float> sums(topk * topk);
  for (int64_t n = 0; n < topk * topk; ++n) sums[n] = best[n / topk] + log_probs[n];
  take(children, sums.data(), topk * topk);
}

void Growth::take(const int64_t* tokens, const float* log_probs, int64_t count) {
  int64_t first = 1 + candidates;
  std::copy_n(tokens, count, ids + first);
  std::copy_n(log_probs, count, scores + first - 1);
  for (int64_t n = 0; n < count; ++n) parents[first + n] = numbers[n / topk];
  candidates += count;
  ++level;
  if (level <= proposal.count) merge(first, count);
}

void Growth::descend() {
  int64_t count = topk * topk, first = candidates - count;  // in `scores`
  std::vector<int64_t> order(count), before(masks);
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + topk, order.end(), Better{scores + first});
  for (int64_t k = 0; k < topk; ++k) {
    int64_t place = order[k];
    frontier[k] = ids[1 + first + place];
    best[k] = scores[first + place];
    above[k] = place / topk;
    masks[k] = before[place / topk] | int64_t(uint64_t(1) << ((level - 1) * topk + k));
    numbers[k] = 1 + first + place;
  }
}

float Growth::open_mass() const {
  float mass = 0;
  for (float score : best) mass += std::exp(score);
  if (level < proposal.count && agreed == level) mass -= std::exp(reached + proposal.rates[level]);
  return mass;
}

void Growth::select(const int64_t* depths, int64_t wanted, int64_t nodes, const Nodes& out) const {
  int64_t own = candidates - proposal.count;  // the head's
  std::vector<int64_t> order(candidates);
  std::iota(order.begin(), order.end(), 1);
  auto end = order.begin() + wanted;
  if (wanted < candidates) std::nth_element(order.begin(), end, order.end(), Better{scores - 1});
  std::sort(order.begin(), end);
  for (int64_t n = 0; n < nodes; ++n) {
    bool empty = n > wanted;
    int64_t number = n == 0 || empty ? 0 : order[n - 1], parent_number = parents[number];
    int64_t parent =
        parent_number ? std::lower_bound(order.begin(), order.begin() + n, parent_number) - order.begin() + 1 : 0;
    out.parents[n] = n ? parent : -1;
    out.masks[n] = int64_t(uint64_t(1) << n) | (n ? out.masks[parent] : 0);
    out.token_ids[n] = empty ? -1 : ids[number];
    out.depths[n] = empty ? 1 : depths[number];
    out.sources[n] = empty || number <= own ? 0 : proposal.sources[number - own - 1];
    out.log_probs[n] = empty ? kNever : number ? scores[number - 1] : 0.0f;
  }
}

void share_out(const float* scores, const float* calibration, const int64_t* depths, const int64_t* measured,
               const double* costs, int64_t points, int64_t requests, int64_t candidates, int64_t most,
               int64_t* counts) {
  struct Node {
    float worth;
    int64_t request;
  };
  most = std::min(most, candidates);
  std::vector<Node> best;
  std::vector<float> worth(candidates);
  for (int64_t b = 0; b < requests; ++b) {
    for (int64_t n = 0; n < candidates; ++n)
      worth[n] = std::exp(scores[b * candidates + n]) * (calibration ? calibration[depths[n]] : 1.0f);
    std::partial_sort(worth.begin(), worth.begin() + most, worth.end(), std::greater<float>());
    for (int64_t n = 0; n < most; ++n) best.push_back(Node{worth[n], b});
    counts[b] = 0;
  }
  std::stable_sort(best.begin(), best.end(), [](const Node& a, const Node& b) { return a.worth > b.worth; });
  double gain = 0, largest = -cost_of(measured, costs, points, requests);
  int64_t count = 0;
  for (int64_t n = 0; n < int64_t(best.size()) && best[n].worth > 0; ++n) {
    gain += best[n].worth;
    double left = gain - cost_of(measured, costs, points, requests + n + 1);
    if (left > largest) largest = left, count = n + 1;
  }
  for (int64_t n = 0; n < count; ++n) ++counts[best[n].request];
}

int64_t accept_path(const Nodes& tree, const int64_t* chosen, int64_t nodes, bool speculates, int64_t width,
                    int64_t* path, int64_t* emitted) {
  bool on[kMostNodes] = {true};
  int64_t deepest = 0;
  std::iota(path, path + width, 0);
  for (int64_t n = 1; speculates && n < nodes; ++n) {
    int64_t parent = tree.parents[n];
    on[n] = on[parent] && tree.token_ids[n] == chosen[parent];
    if (!on[n]) continue;
    path[tree.depths[n]] = n;
    deepest = std::max(deepest, tree.depths[n]);
  }
  for (int64_t d = 0; d < width; ++d) emitted[d] = chosen[path[d]];
  return deepest + 1;
}

int64_t coin(int64_t key, int64_t position) {
  uint64_t z = static_cast<uint64_t>(key) + (static_cast<uint64_t>(position) + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return static_cast<int64_t>(z ^ (z >> 31));
}

}  // namespace fledge
