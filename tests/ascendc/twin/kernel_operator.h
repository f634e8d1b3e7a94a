// SPDX-License-Identifier: Apache-2.0
// Host twin of the part of AscendC that our kernels use: `#include "kernel_operator.h"` finds
// CANN's header on the device and this one under g++. See README.md for what it checks.
#pragma once

#define __global__
#define __aicore__
#define __gm__
#define GM_ADDR uint8_t*

enum pipe_t { PIPE_S, PIPE_V, PIPE_MTE2, PIPE_MTE3, PIPE_ALL };
enum event_t : int { EVENT_ID0, EVENT_ID1, EVENT_ID2, EVENT_ID3 };

#include "twin_copy.h"

namespace twin {

struct Launch {
  int cores = 0;
};

inline Launch& launch() {
  static Launch instance;
  return instance;
}

}  // namespace twin

namespace AscendC {

inline int64_t GetBlockIdx() { return twin::core().index; }
inline int64_t GetBlockNum() { return twin::launch().cores; }

template <typename T>
T TwinTiling(const void* address) {
  const twin::Region& region = twin::RegionOf(address, "GET_TILING_DATA");
  if (region.bytes != static_cast<int64_t>(sizeof(T))) {
    twin::Fail("GET_TILING_DATA: %lld bytes of tiling data for a struct of %d",
               (long long)region.bytes, int(sizeof(T)));
  }
  T data;
  memcpy(&data, address, sizeof(T));
  return data;
}

}  // namespace AscendC

#define REGISTER_TILING_DEFAULT(type)
#define KERNEL_TYPE_AIV_ONLY 0
#define KERNEL_TASK_TYPE_DEFAULT(type) static_assert(type == KERNEL_TYPE_AIV_ONLY, "vector cores")
#define GET_TILING_DATA_WITH_STRUCT(type, name, address) \
  const type name = AscendC::TwinTiling<type>(address)
