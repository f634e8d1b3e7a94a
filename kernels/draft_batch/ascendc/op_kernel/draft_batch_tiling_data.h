// SPDX-License-Identifier: Apache-2.0
// What tiling tells the kernel. In op_kernel because CANN installs that folder alone.
#pragma once

#include <cstdint>

namespace draft_batch_op {
// Rows of the batch in the unified buffer at a time, and the int64 values of a 32-byte block:
// cores that own whole blocks of rows never store into one block.
constexpr uint32_t kTile = 512;
constexpr uint32_t kBlock = 4;
}  // namespace draft_batch_op

struct DraftBatchTilingData {
  uint32_t coreCount;
  uint32_t requests;         // B
  uint32_t targetRows;       // N
  uint32_t draftRows;        // N', or more: rows beyond the batch become padding
  uint32_t depth;            // D
  uint32_t pathColumns;      // at least D + 1
  uint32_t wideInputIds;     // int64 instead of int32
  uint32_t wideQueryStart;   // int64 instead of int32
  uint32_t rowsPerCore;      // of the N' rows, whole blocks
  uint32_t requestsPerCore;  // of the B + 1 starts, whole blocks
};
