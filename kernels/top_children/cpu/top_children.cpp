// SPDX-License-Identifier: Apache-2.0
// The W best logits of each row as log-probabilities: one pass that widens a row to float32 and
// keeps the best, one that sums the exponentials.
#include <cmath>
#include <limits>
#include <vector>

#include "exponential.h"

namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();
constexpr int64_t kVecs = 4;  // a block: few enough elements to scan, many enough to skip at once
constexpr int64_t kBlock = kVecs * kLanes;

// The arguments of one call, as cpu_impl.py packs them: 8-byte fields, in order.
struct Call {
  const void* logits;         // [rows, vocab], row_stride elements apart
  const int64_t* target_ids;  // [vocab], or null: the ids are the same
  float* scores;              // [rows, width]
  int64_t* tokens;            // [rows, width]
  int64_t rows, vocab, row_stride, width;
  int64_t dtype;  // 0 float32, 1 bfloat16, 2 float16
};

// The best so far, best first; of equals the one offered first stays ahead.
struct Best {
  float* value;
  int64_t* index;
  int64_t width;
  int64_t filled = 0;

  bool full() const { return filled == width; }
  float worst() const { return value[width - 1]; }
  void offer(float x, int64_t i) {
    if (full() && !(x > worst())) return;
    int64_t at = full() ? width - 1 : filled++;
    for (; at > 0 && x > value[at - 1]; at--) {
      value[at] = value[at - 1];
      index[at] = index[at - 1];
    }
    value[at] = x;
    index[at] = i;
  }
};

// NaN becomes -inf.
ALWAYS_INLINE VecF usable(VecF x) { return x == x ? x : VecF{} + kNone; }

// Fills `row` [vocab, up to a whole block: -inf] and `best`.
template <class T>
void scan(const T* logits, int64_t vocab, float* row, Best& best) {
  int64_t i = 0;
  for (; i + kBlock <= vocab; i += kBlock) {
    VecI above = {};
    VecF bar = VecF{} + (best.full() ? best.worst() : kNone);
    for (int64_t v = 0; v < kVecs; v++) {
      VecF x = usable(widen(logits + i + v * kLanes));
      store(row + i + v * kLanes, x);
      above |= x > bar;
    }
    if (best.full() && !any(above)) continue;
    for (int64_t j = i; j < i + kBlock; j++) best.offer(row[j], j);
  }
  for (int64_t end = (vocab + kBlock - 1) / kBlock * kBlock; i < end; i++) {
    float x = i < vocab ? widen_one(logits + i) : kNone;
    row[i] = x == x ? x : kNone;
    if (i < vocab) best.offer(row[i], i);
  }
}

float sum_of_exponentials(const float* row, int64_t vocab, float max) {
  VecF sum[kVecs] = {};
  for (int64_t i = 0; i < vocab; i += kBlock)
    for (int64_t v = 0; v < kVecs; v++) sum[v] += exponential(load(row + i + v * kLanes) - max);
  VecF total = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  float result = 0;
  for (int lane = 0; lane < kLanes; lane++) result += total[lane];
  return result;
}

template <class T>
void run(const Call& call) {
  thread_local std::vector<float> row;
  row.resize((call.vocab + kBlock - 1) / kBlock * kBlock);
  for (int64_t r = 0; r < call.rows; r++) {
    float* scores = call.scores + r * call.width;
    int64_t* tokens = call.tokens + r * call.width;
    Best best{scores, tokens, call.width};
    scan(static_cast<const T*>(call.logits) + r * call.row_stride, call.vocab, row.data(), best);
    float max = scores[0];
    bool finite = std::isfinite(max);
    float log_sum = finite ? std::log(sum_of_exponentials(row.data(), call.vocab, max)) : 0;
    for (int64_t k = 0; k < call.width; k++) {
      scores[k] = finite ? scores[k] - max - log_sum : kNone;
      if (call.target_ids) tokens[k] = call.target_ids[tokens[k]];
    }
  }
}

}  // namespace

extern "C" int64_t top_children_call_bytes() { return sizeof(Call); }

extern "C" void top_children(const Call* call) {
  if (call->dtype == 0) run<float>(*call);
  if (call->dtype == 1) run<BFloat16>(*call);
  if (call->dtype == 2) run<Half>(*call);
}
