// SPDX-License-Identifier: Apache-2.0
// Tiling of tree_build as plain C++: the host glue and the twin's tests run the same function.
#pragma once

#include <cstdint>
#include <cstdio>

#include "../op_kernel/tree_build_tiling_data.h"

struct TreeBuildShape {
  int64_t batch, width, depth, nodes;  // B, W, D, M
  int64_t cores, unifiedBytes;         // of the device
};

namespace tree_build_op {

constexpr int64_t kMaxBatch = 4096;
constexpr int64_t kMaxWidth = 64;
constexpr int64_t kMaxDepth = 128;
constexpr int64_t kMaxCandidates = 4096;
constexpr int64_t kMaxRows = 384;

inline int64_t RoundUp(int64_t bytes) { return (bytes + 31) / 32 * 32; }

inline int64_t Capacity(const TreeBuildShape& shape) {
  return shape.width + (shape.depth - 1) * shape.width * shape.width;
}

// Requests whose `valid` rows (R bytes each) are whole 32-byte blocks; the other outputs have a
// multiple of R bytes per request, so theirs are too. 1 where R is a multiple of 32.
inline int64_t RequestGroup(int64_t rows) {
  int64_t group = 32;
  while (group > 1 && group / 2 * rows % 32 == 0) group /= 2;
  return group;
}

// Per candidate token, parent, score and row; the heap; per row five int64, valid, score, both
// masks; the root's token.
inline int64_t UnifiedBytes(int64_t capacity, int64_t rows) {
  const int64_t heap = rows > 1 ? rows - 1 : 1;
  return 2 * RoundUp(capacity * 8) + RoundUp(capacity * 4) + RoundUp((capacity + 1) * 4) +
         RoundUp(heap * 4) + 5 * RoundUp(rows * 8) + RoundUp(rows) + RoundUp(rows * 4) +
         rows * RoundUp(rows) + RoundUp(rows * ((rows + 31) / 32) * 4) + 32;
}

inline const char* Refuse(const char* what, int64_t value, int64_t low, int64_t high) {
  static thread_local char text[160];
  snprintf(text, sizeof(text), "tree_build: %s=%lld is not in %lld to %lld", what,
           static_cast<long long>(value), static_cast<long long>(low),
           static_cast<long long>(high));
  return text;
}

}  // namespace tree_build_op

// nullptr, or what is wrong with the shape: valid until the thread's next call.
inline const char* ComputeTiling(const TreeBuildShape& shape, TreeBuildTilingData& tiling) {
  using namespace tree_build_op;
  if (shape.batch < 1 || shape.batch > kMaxBatch) return Refuse("B", shape.batch, 1, kMaxBatch);
  if (shape.width < 1 || shape.width > kMaxWidth) return Refuse("W", shape.width, 1, kMaxWidth);
  if (shape.depth < 1 || shape.depth > kMaxDepth) return Refuse("D", shape.depth, 1, kMaxDepth);
  const int64_t capacity = Capacity(shape), rows = shape.nodes + 1;
  if (capacity > kMaxCandidates) return Refuse("candidates", capacity, 1, kMaxCandidates);
  if (shape.nodes < 1 || shape.nodes > capacity) return Refuse("M", shape.nodes, 1, capacity);
  if (rows > kMaxRows) return Refuse("rows", rows, 2, kMaxRows);
  if (shape.cores < 1) return Refuse("cores", shape.cores, 1, 1024);
  const int64_t bytes = UnifiedBytes(capacity, rows);
  if (bytes > shape.unifiedBytes) {
    return Refuse("unified buffer bytes", bytes, 0, shape.unifiedBytes);
  }
  const int64_t group = RequestGroup(rows);
  const int64_t groups = (shape.batch + group - 1) / group;
  const int64_t per_core = (groups + shape.cores - 1) / shape.cores;
  tiling.coreCount = static_cast<uint32_t>((groups + per_core - 1) / per_core);
  tiling.batch = static_cast<uint32_t>(shape.batch);
  tiling.capacity = static_cast<uint32_t>(capacity);
  tiling.rows = static_cast<uint32_t>(rows);
  tiling.maskWords = static_cast<uint32_t>((rows + 31) / 32);
  tiling.visiblePitch = static_cast<uint32_t>(RoundUp(rows));
  tiling.requestsPerCore = static_cast<uint32_t>(per_core * group);
  return nullptr;
}
