// SPDX-License-Identifier: Apache-2.0
// The likeliest nodes of all trees while they pay, and what verified trees teach.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

namespace {

constexpr int64_t kBins = 22;

struct Trees {
  int64_t *tokens, *parent, *depth;  // [B, R]
  uint8_t *valid, *visible;          // [B, R], [B, R, R]
  float* score;                      // [B, R]
};

// As cpu_impl.py packs it: 8-byte fields, in order. All contiguous.
struct Call {
  Trees trees;
  double *seen, *accepted;  // [D, kBins]
  const float* edges;       // [kBins - 1]
  // Of tree_prune.
  Trees kept;
  const double* cost;  // [> B (R - 1)]
  double* chance;      // [B, R]
  // Of tally_paths.
  const int64_t *rows, *length;  // [B, columns], [B]
  int64_t batch, tree_rows, columns, depth;
  double prior, memory;
};

// Where a valid node's level and the head's word, `said` as a logarithm, are counted.
int64_t place_of(const Call& call, int64_t base, int64_t row, float* said) {
  const float* score = call.trees.score + base;
  *said = score[row] - score[call.trees.parent[base + row]];
  int64_t bin = std::lower_bound(call.edges, call.edges + kBins - 1, *said) - call.edges;
  return (call.trees.depth[base + row] - 1) * kBins + bin;
}

void fill_chances(const Call& call, int64_t b) {
  const int64_t base = b * call.tree_rows;
  double* chance = call.chance + base;
  chance[0] = 1.0;
  for (int64_t row = 1; row < call.tree_rows; row++) {
    chance[row] = 0.0;
    if (!call.trees.valid[base + row]) continue;
    float said;
    const int64_t place = place_of(call, base, row, &said);
    const double edge = (call.prior * std::exp(double(said)) + call.accepted[place]) /
                        (call.prior + call.seen[place]);
    chance[row] = edge * chance[call.trees.parent[base + row]];
  }
}

// The chance of the last node to keep; infinite where none is.
double least_kept(const Call& call) {
  thread_local std::vector<double> falling;
  falling.clear();
  for (int64_t i = 0; i < call.batch * call.tree_rows; i++)
    if (i % call.tree_rows && call.chance[i] > 0) falling.push_back(call.chance[i]);
  std::sort(falling.begin(), falling.end(), std::greater<double>());
  double brought = 0.0, best = -call.cost[0];
  double least = std::numeric_limits<double>::infinity();
  for (size_t n = 0; n < falling.size(); n++) {
    brought += falling[n];
    if (brought - call.cost[n + 1] > best) {
      best = brought - call.cost[n + 1];
      least = falling[n];
    }
  }
  return least;
}

void keep(const Call& call, int64_t b, double least) {
  const int64_t R = call.tree_rows, base = b * R;
  const double* chance = call.chance + base;
  thread_local std::vector<int64_t> order, row_of;
  order.clear();
  for (int64_t row = 1; row < R; row++)
    if (chance[row] > 0 && chance[row] >= least) order.push_back(row);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t i, int64_t j) { return chance[i] > chance[j]; });
  order.insert(order.begin(), 0);
  row_of.assign(R, 0);
  const Trees &from = call.trees, &to = call.kept;
  const int64_t count = order.size();
  uint8_t* visible = to.visible + base * R;
  std::memset(visible, 0, R * R);
  for (int64_t row = 0; row < R; row++) {
    const bool valid = row < count;
    const int64_t old = valid ? order[row] : 0;
    if (valid) row_of[old] = row;
    const int64_t parent = row_of[from.parent[base + old]];
    to.tokens[base + row] = valid ? from.tokens[base + old] : 0;
    to.parent[base + row] = valid ? parent : 0;
    to.depth[base + row] = valid ? from.depth[base + old] : 0;
    to.valid[base + row] = valid;
    to.score[base + row] =
        valid ? from.score[base + old] : -std::numeric_limits<float>::infinity();
    if (valid && row) std::memcpy(visible + row * R, visible + parent * R, row);
    visible[row * R + (valid ? row : 0)] = 1;
  }
}

}  // namespace

extern "C" {

int64_t tree_prune_call_bytes() { return sizeof(Call); }

void tree_prune(const Call* call) {
  for (int64_t b = 0; b < call->batch; b++) fill_chances(*call, b);
  const double least = least_kept(*call);
  for (int64_t b = 0; b < call->batch; b++) keep(*call, b, least);
}

void tally_paths(const Call* call) {
  thread_local std::vector<uint8_t> on_path;
  thread_local std::vector<std::pair<int64_t, bool>> tried;
  tried.clear();
  for (int64_t b = 0; b < call->batch; b++) {
    const int64_t base = b * call->tree_rows;
    on_path.assign(call->tree_rows, 0);
    for (int64_t i = 0; i <= call->length[b]; i++) on_path[call->rows[b * call->columns + i]] = 1;
    for (int64_t row = 1; row < call->tree_rows; row++) {
      if (!call->trees.valid[base + row] || !on_path[call->trees.parent[base + row]]) continue;
      float said;
      tried.emplace_back(place_of(*call, base, row, &said), on_path[row]);
    }
  }
  const double leaves = std::pow(call->memory, double(tried.size()));
  for (int64_t i = 0; i < call->depth * kBins; i++) {
    call->seen[i] *= leaves;
    call->accepted[i] *= leaves;
  }
  for (const auto& [place, was_accepted] : tried) {
    call->seen[place] += 1.0;
    call->accepted[place] += was_accepted;
  }
}

}
