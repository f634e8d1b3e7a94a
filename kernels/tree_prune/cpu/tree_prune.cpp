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

struct Trees {
  int64_t *tokens, *parent, *depth;  // [B, R]
  uint8_t *valid, *visible;          // [B, R], [B, R, R]
  float* score;                      // [B, R]
};

// As cpu_impl.py packs it: 8-byte fields, in order. All contiguous.
struct Call {
  Trees trees;
  const int64_t* kind;         // [B]
  double *line, *information;  // [kinds, 3], [kinds, 3, 3]
  // Of tree_prune.
  Trees kept;
  const double* cost;  // [> B (R - 1)]
  double* chance;      // [B, R]
  // Of tally_paths.
  const int64_t *rows, *length;  // [B, columns], [B]
  int64_t batch, tree_rows, columns, kinds;
  double least, most, prior, step, memory;
};

constexpr int FEATURES = 3;

// By parent, the likeliest of its children in a tree, of equal ones the lower row.
void find_first(const Call& call, int64_t base, std::vector<int64_t>& first) {
  const float* score = call.trees.score + base;
  first.assign(call.tree_rows, 0);
  for (int64_t row = 1; row < call.tree_rows; row++) {
    if (!call.trees.valid[base + row]) continue;
    int64_t& likeliest = first[call.trees.parent[base + row]];
    if (!likeliest || score[row] > score[likeliest]) likeliest = row;
  }
}

// Of a valid node: 1, the log-odds that the head gave it after its parent, whether it is the first.
struct Features {
  double each[FEATURES];

  Features(const Call& call, int64_t base, int64_t row, const std::vector<int64_t>& first) {
    const float* score = call.trees.score + base;
    const int64_t parent = call.trees.parent[base + row];
    double said = double(score[row] - score[parent]);
    said = std::min(std::max(said, call.least), call.most);
    each[0] = 1.0;
    each[1] = said - std::log(-std::expm1(said));
    each[2] = first[parent] == row;
  }

  double chance(const double* line) const {
    double odds = 0.0;
    for (int i = 0; i < FEATURES; i++) odds += line[i] * each[i];
    return 1.0 / (1.0 + std::exp(-odds));
  }
};

void fill_chances(const Call& call, int64_t b) {
  thread_local std::vector<int64_t> first;
  const int64_t base = b * call.tree_rows;
  double* chance = call.chance + base;
  const double* line = call.line + FEATURES * call.kind[b];
  find_first(call, base, first);
  chance[0] = 1.0;
  for (int64_t row = 1; row < call.tree_rows; row++) {
    chance[row] = 0.0;
    if (!call.trees.valid[base + row]) continue;
    const double edge = Features(call, base, row, first).chance(line);
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

// Of the tried nodes of a kind, sums over features: what was said too little, and the information.
struct Seen {
  int64_t tried = 0;
  double wrong[FEATURES] = {}, information[FEATURES][FEATURES] = {};
};

// x of A x = y, for the `count` features `of`; A is symmetric and positive definite.
void solve(const double a[FEATURES][FEATURES], const double* y, const int* of, int count,
           double* x) {
  double left[FEATURES][FEATURES], right[FEATURES];
  for (int i = 0; i < count; i++) {
    right[i] = y[of[i]];
    for (int j = 0; j < count; j++) left[i][j] = a[of[i]][of[j]];
  }
  for (int k = 0; k < count; k++)
    for (int i = k + 1; i < count; i++) {
      const double times = left[i][k] / left[k][k];
      for (int j = k; j < count; j++) left[i][j] -= times * left[k][j];
      right[i] -= times * right[k];
    }
  for (int i = count - 1; i >= 0; i--) {
    for (int j = i + 1; j < count; j++) right[i] -= left[i][j] * x[of[j]];
    x[of[i]] = right[i] / left[i][i];
  }
}

void learn(const Call& call, const Seen& seen, double* line, double* information) {
  const double leaves = std::pow(call.memory, double(seen.tried));
  double square[FEATURES][FEATURES], wrong[FEATURES], steps[FEATURES];
  for (int i = 0; i < FEATURES; i++) {
    wrong[i] = seen.wrong[i];
    for (int j = 0; j < FEATURES; j++) {
      double& known = information[FEATURES * i + j];
      known = known * leaves + seen.information[i][j];
      square[i][j] = known + (i == j ? call.prior : 0.0);
    }
  }
  const int all[] = {0, 1, 2}, others[] = {0, 2};
  solve(square, wrong, all, 3, steps);
  // A node that the head thinks likelier is not believed to be less likely.
  if (steps[1] < -line[1]) {
    steps[1] = -line[1];
    for (int i = 0; i < FEATURES; i++) wrong[i] -= square[i][1] * steps[1];
    solve(square, wrong, others, 2, steps);
  }
  for (int i = 0; i < FEATURES; i++)
    line[i] += std::min(std::max(steps[i], -call.step), call.step);
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
  thread_local std::vector<int64_t> first;
  std::vector<Seen> seen(call->kinds);
  for (int64_t b = 0; b < call->batch; b++) {
    const int64_t base = b * call->tree_rows, kind = call->kind[b];
    Seen& of_kind = seen[kind];
    find_first(*call, base, first);
    on_path.assign(call->tree_rows, 0);
    for (int64_t i = 0; i <= call->length[b]; i++) on_path[call->rows[b * call->columns + i]] = 1;
    for (int64_t row = 1; row < call->tree_rows; row++) {
      if (!call->trees.valid[base + row] || !on_path[call->trees.parent[base + row]]) continue;
      const Features features(*call, base, row, first);
      const double chance = features.chance(call->line + FEATURES * kind);
      const double error = on_path[row] - chance, weight = chance * (1.0 - chance);
      for (int i = 0; i < FEATURES; i++) {
        of_kind.wrong[i] += error * features.each[i];
        for (int j = 0; j < FEATURES; j++)
          of_kind.information[i][j] += weight * features.each[i] * features.each[j];
      }
      of_kind.tried++;
    }
  }
  for (int64_t kind = 0; kind < call->kinds; kind++)
    learn(*call, seen[kind], call->line + FEATURES * kind,
          call->information + FEATURES * FEATURES * kind);
}

}
