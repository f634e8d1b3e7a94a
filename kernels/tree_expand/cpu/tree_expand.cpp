// SPDX-License-Identifier: Apache-2.0
// One level of tree growth: children to their candidates, the W best of them to the frontier.
#include <cstdint>
#include <cstring>
#include <limits>

namespace {

// The arguments of one call, as cpu_impl.py packs them: 8-byte fields, in order. All contiguous.
struct Call {
  const float* scores;              // [B, W, W], below the root [B, W]
  const int64_t* tokens;            // likewise
  const float* above_score;         // [B, W]; null below the root, like the next two
  const int64_t* above_candidate;   // [B, W]
  const uint8_t* above_visible;     // [B, W, (level-1)*W]
  int64_t* candidate_tokens;        // [B, capacity]
  float* candidate_scores;          // [B, capacity]
  int64_t* candidate_parents;       // [B, capacity]
  int64_t* out_tokens;              // [B, W]
  float* out_score;                 // [B, W]
  int64_t* out_parent;              // [B, W]
  uint8_t* out_visible;             // [B, W, level*W]
  int64_t* out_candidate;           // [B, W]
  int64_t batch, width, level, capacity, first;
};

// At most 0; NaN becomes -inf.
inline float log_probability(float x) {
  if (x != x) return -std::numeric_limits<float>::infinity();
  return x > 0 ? 0 : x;
}

// The indices of the `width` best of `scores` [count], best first, of equals the lower index first.
void best_children(const float* scores, int64_t count, int64_t width, int64_t* index) {
  int64_t filled = 0;
  for (int64_t c = 0; c < count; c++) {
    if (filled == width && !(scores[c] > scores[index[width - 1]])) continue;
    int64_t at = filled < width ? filled++ : width - 1;
    for (; at > 0 && scores[c] > scores[index[at - 1]]; at--) index[at] = index[at - 1];
    index[at] = c;
  }
}

void expand(const Call& call, int64_t b) {
  const int64_t W = call.width;
  const bool below_root = call.above_score == nullptr;
  const int64_t families = below_root ? 1 : W;
  const int64_t first = b * call.capacity + call.first;
  int64_t* token = call.candidate_tokens + first;
  float* score = call.candidate_scores + first;
  int64_t* parent = call.candidate_parents + first;
  for (int64_t f = 0, c = 0; f < families; f++) {
    float above = below_root ? 0 : call.above_score[b * W + f];
    int64_t candidate = below_root ? 0 : call.above_candidate[b * W + f];
    for (int64_t k = 0; k < W; k++, c++) {
      token[c] = call.tokens[b * families * W + c];
      score[c] = log_probability(call.scores[b * families * W + c]) + above;
      parent[c] = candidate;
    }
  }

  int64_t* chosen = call.out_candidate + b * W;
  if (below_root)
    for (int64_t k = 0; k < W; k++) chosen[k] = k;
  else
    best_children(score, W * W, W, chosen);
  const int64_t inherited = (call.level - 1) * W, seen = call.level * W;
  for (int64_t k = 0; k < W; k++) {
    const int64_t c = chosen[k], from = b * W + c / W, to = b * W + k;
    call.out_tokens[to] = token[c];
    call.out_score[to] = score[c];
    call.out_parent[to] = below_root ? 0 : c / W;
    uint8_t* visible = call.out_visible + to * seen;
    if (!below_root) std::memcpy(visible, call.above_visible + from * inherited, inherited);
    std::memset(visible + inherited, 0, W);
    visible[inherited + k] = 1;
    chosen[k] = call.first + c + 1;
  }
}

}  // namespace

extern "C" int64_t tree_expand_call_bytes() { return sizeof(Call); }

extern "C" void tree_expand(const Call* call) {
  for (int64_t b = 0; b < call->batch; b++) expand(*call, b);
}
