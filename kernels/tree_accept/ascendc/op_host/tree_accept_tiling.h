// SPDX-License-Identifier: Apache-2.0
// Tiling of tree_accept as plain C++: the host glue and the twin's tests run the same function.
#pragma once

#include <cstdint>
#include <cstdio>

#include "../op_kernel/tree_accept_tiling_data.h"

struct TreeAcceptShape {
  int64_t batch, rows, depth;    // B, R, D
  int64_t cores, unifiedBytes;   // of the device
};

namespace tree_accept_op {

constexpr int64_t kMaxBatch = 4096;
constexpr int64_t kMaxRows = 1024;
constexpr int64_t kMaxDepth = 128;

inline int64_t RoundUp(int64_t bytes) { return (bytes + 31) / 32 * 32; }

// One group's tokens, parents, draws and valid flags, and its rows, output and lengths.
inline int64_t UnifiedBytes(int64_t rows, int64_t depth) {
  return 3 * RoundUp(kGroup * rows * 8) + RoundUp(kGroup * rows) +
         2 * RoundUp(kGroup * (depth + 1) * 8) + RoundUp(kGroup * 8);
}

inline const char* Refuse(const char* what, int64_t value, int64_t low, int64_t high) {
  static thread_local char text[160];
  snprintf(text, sizeof(text), "tree_accept: %s=%lld is not in %lld to %lld", what,
           static_cast<long long>(value), static_cast<long long>(low),
           static_cast<long long>(high));
  return text;
}

}  // namespace tree_accept_op

// nullptr, or what is wrong with the shape: valid until the thread's next call.
inline const char* ComputeTiling(const TreeAcceptShape& shape, TreeAcceptTilingData& tiling) {
  using namespace tree_accept_op;
  if (shape.batch < 1 || shape.batch > kMaxBatch) return Refuse("B", shape.batch, 1, kMaxBatch);
  if (shape.rows < 1 || shape.rows > kMaxRows) return Refuse("R", shape.rows, 1, kMaxRows);
  if (shape.depth < 0 || shape.depth > kMaxDepth) return Refuse("D", shape.depth, 0, kMaxDepth);
  if (shape.cores < 1) return Refuse("cores", shape.cores, 1, 1024);
  const int64_t bytes = UnifiedBytes(shape.rows, shape.depth);
  if (bytes > shape.unifiedBytes) {
    return Refuse("unified buffer bytes", bytes, 0, shape.unifiedBytes);
  }
  const int64_t groups = (shape.batch + kGroup - 1) / kGroup;
  const int64_t per_core = (groups + shape.cores - 1) / shape.cores;
  tiling.coreCount = static_cast<uint32_t>((groups + per_core - 1) / per_core);
  tiling.batch = static_cast<uint32_t>(shape.batch);
  tiling.rows = static_cast<uint32_t>(shape.rows);
  tiling.depth = static_cast<uint32_t>(shape.depth);
  tiling.groupsPerCore = static_cast<uint32_t>(per_core);
  return nullptr;
}
