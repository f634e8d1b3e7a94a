// SPDX-License-Identifier: Apache-2.0
// What tiling tells the kernel. In op_kernel because CANN installs that folder alone.
#pragma once

#include <cstdint>

namespace kv_commit_op {
// Four int64 are a 32-byte block: cores that own whole groups of four requests never store into
// one block of `slots`.
constexpr uint32_t kGroup = 4;
// Two copies are in flight.
constexpr uint32_t kCopies = 2;
}  // namespace kv_commit_op

struct KvCommitTilingData {
  uint32_t coreCount;
  uint32_t batch;          // B
  uint32_t rows;           // R
  uint32_t pathColumns;    // D + 1
  uint32_t layers;         // L
  uint32_t groupsPerCore;  // groups of kGroup requests whose slots a core stores
  uint32_t itemsPerCore;   // of the 2 * L * B (request, layer, K or V) that a core copies
  uint32_t tileBytes;      // of a row, at a time
  uint64_t rowBytes;       // Hk * K elements
  uint64_t scratchRows;    // at least B * R
  uint64_t cacheRows;      // blocks * block size
};
