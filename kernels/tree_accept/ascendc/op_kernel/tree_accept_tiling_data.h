// SPDX-License-Identifier: Apache-2.0
// What tiling tells the kernel. In op_kernel because CANN installs that folder alone.
#pragma once

#include <cstdint>

namespace tree_accept_op {
// Four int64 are a 32-byte block: cores that own whole groups of four requests never store into
// one block, whatever R and D are.
constexpr uint32_t kGroup = 4;
}  // namespace tree_accept_op

struct TreeAcceptTilingData {
  uint32_t coreCount;
  uint32_t batch;          // B
  uint32_t rows;           // R
  uint32_t depth;          // D
  uint32_t groupsPerCore;  // groups of kGroup requests
};
