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
  double *line, *information;  // [kinds, 2], [kinds, 2, 2]
  // Of tree_prune.
  Trees kept;
  const double* cost;  // [> B (R - 1)]
  double* chance;      // [B, R]
  // Of tally_paths.
  const int64_t *rows, *length;  // [B, columns], [B]
  int64_t batch, tree_rows, columns, kinds;
  double least, most, prior, step, memory;
};

// The log-odds that the head gave a valid node after its parent.
double odds_of(const Call& call, int64_t base, int64_t row) {
  const float* score = call.trees.score + base;
  double said = double(score[row] - score[call.trees.parent[base + row]]);
  said = std::min(std::max(said, call.least), call.most);
  return said - std::log(-std::expm1(said));
}

double chance_of(const double* line, double odds) {
  return 1.0 / (1.0 + std::exp(-(line[0] + line[1] * odds)));
}

void fill_chances(const Call& call, int64_t b) {
  const int64_t base = b * call.tree_rows;
  double* chance = call.chance + base;
  const double* line = call.line + 2 * call.kind[b];
  chance[0] = 1.0;
  for (int64_t row = 1; row < call.tree_rows; row++) {
    chance[row] = 0.0;
    if (!call.trees.valid[base + row]) continue;
    const double edge = chance_of(line, odds_of(call, base, row));
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

// Of the tried nodes of a kind, sums over (1, odds): what was said too little, and the information.
struct Seen {
  int64_t tried = 0;
  double wrong[2] = {}, information[3] = {};
};

void learn(const Call& call, const Seen& seen, double* line, double* information) {
  const double leaves = std::pow(call.memory, double(seen.tried));
  information[0] = information[0] * leaves + seen.information[0];
  information[1] = information[1] * leaves + seen.information[1];
  information[2] = information[1];
  information[3] = information[3] * leaves + seen.information[2];
  const double a = information[0] + call.prior, b = information[1];
  const double d = information[3] + call.prior, determinant = a * d - b * b;
  const double* wrong = seen.wrong;
  double steps[] = {(d * wrong[0] - b * wrong[1]) / determinant,
                    (a * wrong[1] - b * wrong[0]) / determinant};
  // A node that the head thinks likelier is not believed to be less likely.
  if (steps[1] < -line[1]) {
    steps[1] = -line[1];
    steps[0] = (wrong[0] - b * steps[1]) / a;
  }
  for (int i = 0; i < 2; i++) line[i] += std::min(std::max(steps[i], -call.step), call.step);
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
  std::vector<Seen> seen(call->kinds);
  for (int64_t b = 0; b < call->batch; b++) {
    const int64_t base = b * call->tree_rows, kind = call->kind[b];
    Seen& of_kind = seen[kind];
    on_path.assign(call->tree_rows, 0);
    for (int64_t i = 0; i <= call->length[b]; i++) on_path[call->rows[b * call->columns + i]] = 1;
    for (int64_t row = 1; row < call->tree_rows; row++) {
      if (!call->trees.valid[base + row] || !on_path[call->trees.parent[base + row]]) continue;
      const double odds = odds_of(*call, base, row);
      const double chance = chance_of(call->line + 2 * kind, odds);
      const double error = on_path[row] - chance, weight = chance * (1.0 - chance);
      of_kind.wrong[0] += error;
      of_kind.wrong[1] += error * odds;
      of_kind.information[0] += weight;
      of_kind.information[1] += weight * odds;
      of_kind.information[2] += weight * odds * odds;
      of_kind.tried++;
    }
  }
  for (int64_t kind = 0; kind < call->kinds; kind++)
    learn(*call, seen[kind], call->line + 2 * kind, call->information + 4 * kind);
}

}
