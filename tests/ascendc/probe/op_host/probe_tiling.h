// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../op_kernel/probe_tiling_data.h"

struct ProbeShape {
  int64_t cores, fault, size;
};

inline const char* ComputeTiling(const ProbeShape& shape, ProbeTilingData& tiling) {
  tiling.coreCount = static_cast<uint32_t>(shape.cores);
  tiling.fault = static_cast<uint32_t>(shape.fault);
  tiling.size = static_cast<uint32_t>(shape.size);
  return nullptr;
}
