// SPDX-License-Identifier: Apache-2.0
// Tiling of draft_batch as plain C++: the host glue and the twin's tests run the same function.
#pragma once

#include <cstdint>
#include <cstdio>

#include "../op_kernel/draft_batch_tiling_data.h"

struct DraftBatchShape {
  int64_t requests, targetRows, draftRows, depth, pathColumns;  // B, N, N', D, columns of a path
  int64_t inputIdBytes, queryStartBytes;                        // 4 or 8
  int64_t cores, unifiedBytes;                                  // of the device
};

namespace draft_batch_op {

constexpr int64_t kMaxRequests = 2048;
constexpr int64_t kMaxRows = 1 << 20;
constexpr int64_t kMaxDepth = 128;

inline int64_t RoundUp(int64_t bytes) { return (bytes + 31) / 32 * 32; }

// What a core stores, in whole blocks.
inline int64_t Share(int64_t elements, int64_t cores) {
  const int64_t blocks = (elements + kBlock - 1) / kBlock;
  return (blocks + cores - 1) / cores * kBlock;
}

// Per request start, tree flag, length and next token; the core's own starts and sample rows;
// three tiles of input rows, two paths and four tiles of drafter rows.
inline int64_t UnifiedBytes(const DraftBatchShape& shape, int64_t requests_per_core) {
  return RoundUp((shape.requests + 1) * 8) + RoundUp(shape.requests) +
         2 * RoundUp(shape.requests * 8) + 2 * RoundUp(requests_per_core * 8) +
         7 * RoundUp(kTile * 8) + 2 * RoundUp((shape.depth + 1) * 8);
}

inline const char* Refuse(const char* what, int64_t value, int64_t low, int64_t high) {
  static thread_local char text[160];
  snprintf(text, sizeof(text), "draft_batch: %s=%lld is not in %lld to %lld", what,
           static_cast<long long>(value), static_cast<long long>(low),
           static_cast<long long>(high));
  return text;
}

inline const char* Check(const DraftBatchShape& shape) {
  if (shape.requests < 1 || shape.requests > kMaxRequests) {
    return Refuse("B", shape.requests, 1, kMaxRequests);
  }
  if (shape.targetRows < 1 || shape.targetRows > kMaxRows) {
    return Refuse("N", shape.targetRows, 1, kMaxRows);
  }
  if (shape.draftRows < 1 || shape.draftRows > kMaxRows) {
    return Refuse("N'", shape.draftRows, 1, kMaxRows);
  }
  if (shape.depth < 0 || shape.depth > kMaxDepth) return Refuse("D", shape.depth, 0, kMaxDepth);
  if (shape.pathColumns <= shape.depth || shape.pathColumns > kMaxRows) {
    return Refuse("path columns", shape.pathColumns, shape.depth + 1, kMaxRows);
  }
  if (shape.inputIdBytes != 4 && shape.inputIdBytes != 8) {
    return Refuse("bytes of an input id", shape.inputIdBytes, 4, 8);
  }
  if (shape.queryStartBytes != 4 && shape.queryStartBytes != 8) {
    return Refuse("bytes of a query start", shape.queryStartBytes, 4, 8);
  }
  if (shape.cores < 1) return Refuse("cores", shape.cores, 1, 1024);
  return nullptr;
}

}  // namespace draft_batch_op

// nullptr, or what is wrong with the shape: valid until the thread's next call.
inline const char* ComputeTiling(const DraftBatchShape& shape, DraftBatchTilingData& tiling) {
  using namespace draft_batch_op;
  if (const char* refusal = Check(shape)) return refusal;
  const int64_t rows = Share(shape.draftRows, shape.cores);
  const int64_t requests = Share(shape.requests + 1, shape.cores);
  const int64_t bytes = UnifiedBytes(shape, requests);
  if (bytes > shape.unifiedBytes) {
    return Refuse("unified buffer bytes", bytes, 0, shape.unifiedBytes);
  }
  const int64_t row_cores = (shape.draftRows + rows - 1) / rows;
  const int64_t request_cores = (shape.requests + requests) / requests;
  tiling.coreCount = static_cast<uint32_t>(row_cores > request_cores ? row_cores : request_cores);
  tiling.requests = static_cast<uint32_t>(shape.requests);
  tiling.targetRows = static_cast<uint32_t>(shape.targetRows);
  tiling.draftRows = static_cast<uint32_t>(shape.draftRows);
  tiling.depth = static_cast<uint32_t>(shape.depth);
  tiling.pathColumns = static_cast<uint32_t>(shape.pathColumns);
  tiling.wideInputIds = shape.inputIdBytes == 8;
  tiling.wideQueryStart = shape.queryStartBytes == 8;
  tiling.rowsPerCore = static_cast<uint32_t>(rows);
  tiling.requestsPerCore = static_cast<uint32_t>(requests);
  return nullptr;
}
