// SPDX-License-Identifier: Apache-2.0
// Candidates to trees: lower each score to its parent's, keep the best M, renumber.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

// The arguments of one call, as cpu_impl.py packs them: 8-byte fields, in order. All contiguous.
struct Call {
  const int64_t* root_tokens;  // [B]
  const int64_t* tokens;       // [B, capacity]
  const float* scores;         // [B, capacity]
  const int64_t* parents;      // [B, capacity]
  int64_t* out_tokens;         // [B, rows]
  int64_t* out_parent;         // [B, rows]
  int64_t* out_depth;          // [B, rows]
  uint8_t* out_valid;          // [B, rows]
  uint8_t* out_visible;        // [B, rows, rows]
  float* out_score;            // [B, rows]
  int64_t batch, capacity, width, rows;
};

struct Scratch {
  std::vector<float> score;     // [capacity], lowered
  std::vector<int64_t> kept;    // candidate indices
  std::vector<int64_t> row_of;  // [capacity + 1]: the row of the root and of each kept candidate
};

// The candidates to keep, in their own order, which has parents first.
void choose(const Call& call, int64_t b, Scratch& scratch) {
  const float* scores = call.scores + b * call.capacity;
  const int64_t* parents = call.parents + b * call.capacity;
  auto& [score, kept, row_of] = scratch;
  score.resize(call.capacity);
  kept.clear();
  for (int64_t c = 0; c < call.capacity; c++) {
    float own = scores[c] == scores[c] ? scores[c] : kNone;
    score[c] = parents[c] ? std::min(own, score[parents[c] - 1]) : own;
    if (score[c] > kNone) kept.push_back(c);
  }
  const int64_t nodes = call.rows - 1;
  if (int64_t(kept.size()) <= nodes) return;
  // Of equals the lower index: parents precede children, so what is kept has its ancestors.
  std::nth_element(kept.begin(), kept.begin() + nodes, kept.end(), [&](int64_t i, int64_t j) {
    return score[i] > score[j] || (score[i] == score[j] && i < j);
  });
  kept.resize(nodes);
  std::sort(kept.begin(), kept.end());
}

void build(const Call& call, int64_t b, Scratch& scratch) {
  choose(call, b, scratch);
  const int64_t R = call.rows, valid_rows = 1 + int64_t(scratch.kept.size());
  int64_t* tokens = call.out_tokens + b * R;
  int64_t* parent = call.out_parent + b * R;
  int64_t* depth = call.out_depth + b * R;
  uint8_t* valid = call.out_valid + b * R;
  uint8_t* visible = call.out_visible + b * R * R;
  float* score = call.out_score + b * R;
  scratch.row_of.assign(call.capacity + 1, 0);
  std::memset(visible, 0, R * R);

  tokens[0] = call.root_tokens[b];
  parent[0] = depth[0] = 0;
  valid[0] = visible[0] = 1;
  score[0] = 0;
  for (int64_t row = 1; row < valid_rows; row++) {
    const int64_t c = scratch.kept[row - 1];
    scratch.row_of[c + 1] = row;
    tokens[row] = call.tokens[b * call.capacity + c];
    parent[row] = scratch.row_of[call.parents[b * call.capacity + c]];
    depth[row] = c < call.width ? 1 : 2 + (c - call.width) / (call.width * call.width);
    valid[row] = 1;
    score[row] = scratch.score[c];
    std::memcpy(visible + row * R, visible + parent[row] * R, row);
    visible[row * R + row] = 1;
  }
  for (int64_t row = valid_rows; row < R; row++) {
    tokens[row] = parent[row] = depth[row] = 0;
    valid[row] = 0;
    visible[row * R] = 1;
    score[row] = kNone;
  }
}

}  // namespace

extern "C" int64_t tree_build_call_bytes() { return sizeof(Call); }

extern "C" void tree_build(const Call* call) {
  thread_local Scratch scratch;
  for (int64_t b = 0; b < call->batch; b++) build(*call, b, scratch);
}
