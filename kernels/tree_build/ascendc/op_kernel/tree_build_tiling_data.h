// SPDX-License-Identifier: Apache-2.0
// What tiling tells the kernel. In op_kernel because CANN installs that folder alone.
#pragma once

#include <cstdint>

struct TreeBuildTilingData {
  uint32_t coreCount;
  uint32_t batch;            // B
  uint32_t capacity;         // C, candidates of a request
  uint32_t rows;             // R = M + 1
  uint32_t maskWords;        // 32-bit words of a row's packed mask
  uint32_t visiblePitch;     // bytes of a row's mask in the unified buffer: R in whole blocks
  uint32_t requestsPerCore;  // so many that a core's share of each output is whole blocks
};
