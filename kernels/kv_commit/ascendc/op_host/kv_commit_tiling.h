// SPDX-License-Identifier: Apache-2.0
// Tiling of kv_commit as plain C++: the host glue and the twin's tests run the same function.
#pragma once

#include <cstdint>
#include <cstdio>

#include "../op_kernel/kv_commit_tiling_data.h"

struct KvCommitShape {
  int64_t batch, rows, pathColumns;  // B, R, D + 1
  int64_t layers, rowBytes;          // L, bytes of Hk * K elements
  int64_t scratchRows, cacheRows;    // of one layer's scratch and of its pages
  int64_t cores, unifiedBytes;       // of the device
};

namespace kv_commit_op {

constexpr int64_t kMaxBatch = 4096;
constexpr int64_t kMaxRows = 1024;
constexpr int64_t kMaxPathColumns = 129;
constexpr int64_t kMaxLayers = 256;
constexpr int64_t kMaxRowBytes = 1 << 20;
constexpr int64_t kMaxTileBytes = 32 * 1024;
constexpr int64_t kMaxCacheRows = int64_t{1} << 40;

inline int64_t RoundUp(int64_t bytes) { return (bytes + 31) / 32 * 32; }

// One group's paths, linear slots and slots, and the rows in flight.
inline int64_t UnifiedBytes(int64_t rows, int64_t path_columns, int64_t tile_bytes) {
  return RoundUp(kGroup * path_columns * 8) + 2 * RoundUp(kGroup * rows * 8) +
         kCopies * tile_bytes;
}

inline const char* Refuse(const char* what, int64_t value, int64_t low, int64_t high) {
  static thread_local char text[160];
  snprintf(text, sizeof(text), "kv_commit: %s=%lld is not in %lld to %lld", what,
           static_cast<long long>(value), static_cast<long long>(low),
           static_cast<long long>(high));
  return text;
}

inline const char* Check(const KvCommitShape& shape) {
  if (shape.batch < 1 || shape.batch > kMaxBatch) return Refuse("B", shape.batch, 1, kMaxBatch);
  if (shape.rows < 1 || shape.rows > kMaxRows) return Refuse("R", shape.rows, 1, kMaxRows);
  if (shape.pathColumns < 1 || shape.pathColumns > kMaxPathColumns) {
    return Refuse("path columns", shape.pathColumns, 1, kMaxPathColumns);
  }
  if (shape.layers < 1 || shape.layers > kMaxLayers) {
    return Refuse("L", shape.layers, 1, kMaxLayers);
  }
  if (shape.rowBytes < 32 || shape.rowBytes > kMaxRowBytes) {
    return Refuse("bytes of a K/V row", shape.rowBytes, 32, kMaxRowBytes);
  }
  // Two rows in one 32-byte block could be stored by two cores.
  if (shape.rowBytes % 32 != 0) {
    return Refuse("bytes of a K/V row beyond whole 32-byte blocks", shape.rowBytes % 32, 0, 0);
  }
  if (shape.scratchRows < shape.batch * shape.rows || shape.scratchRows > kMaxCacheRows) {
    return Refuse("scratch rows", shape.scratchRows, shape.batch * shape.rows, kMaxCacheRows);
  }
  if (shape.cacheRows < 1 || shape.cacheRows > kMaxCacheRows) {
    return Refuse("cache rows", shape.cacheRows, 1, kMaxCacheRows);
  }
  if (shape.cores < 1) return Refuse("cores", shape.cores, 1, 1024);
  return nullptr;
}

}  // namespace kv_commit_op

// nullptr, or what is wrong with the shape: valid until the thread's next call.
inline const char* ComputeTiling(const KvCommitShape& shape, KvCommitTilingData& tiling) {
  using namespace kv_commit_op;
  if (const char* refusal = Check(shape)) return refusal;
  const int64_t tile = shape.rowBytes < kMaxTileBytes ? shape.rowBytes : kMaxTileBytes;
  const int64_t bytes = UnifiedBytes(shape.rows, shape.pathColumns, tile);
  if (bytes > shape.unifiedBytes) {
    return Refuse("unified buffer bytes", bytes, 0, shape.unifiedBytes);
  }
  const int64_t groups = (shape.batch + kGroup - 1) / kGroup;
  const int64_t items = 2 * shape.layers * shape.batch;
  const int64_t groups_per_core = (groups + shape.cores - 1) / shape.cores;
  const int64_t items_per_core = (items + shape.cores - 1) / shape.cores;
  const int64_t group_cores = (groups + groups_per_core - 1) / groups_per_core;
  const int64_t item_cores = (items + items_per_core - 1) / items_per_core;
  tiling.coreCount = static_cast<uint32_t>(group_cores > item_cores ? group_cores : item_cores);
  tiling.batch = static_cast<uint32_t>(shape.batch);
  tiling.rows = static_cast<uint32_t>(shape.rows);
  tiling.pathColumns = static_cast<uint32_t>(shape.pathColumns);
  tiling.layers = static_cast<uint32_t>(shape.layers);
  tiling.groupsPerCore = static_cast<uint32_t>(groups_per_core);
  tiling.itemsPerCore = static_cast<uint32_t>(items_per_core);
  tiling.tileBytes = static_cast<uint32_t>(tile);
  tiling.rowBytes = static_cast<uint64_t>(shape.rowBytes);
  tiling.scratchRows = static_cast<uint64_t>(shape.scratchRows);
  tiling.cacheRows = static_cast<uint64_t>(shape.cacheRows);
  return nullptr;
}
