// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace platform_ascendc {

enum class CoreMemType { UB };

class PlatformAscendC {
 public:
  explicit PlatformAscendC(const void*) {}
  uint32_t GetCoreNumAiv() const { return 40; }
  uint32_t GetLibApiWorkSpaceSize() const { return 0; }
  void GetCoreMemSize(CoreMemType, uint64_t& bytes) const { bytes = 192 * 1024; }
};

}  // namespace platform_ascendc
