// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

struct ProbeTilingData {
  uint32_t coreCount;
  uint32_t fault;
  uint32_t size;  // elements of each tensor
};
