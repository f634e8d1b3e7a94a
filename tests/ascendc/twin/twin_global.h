// SPDX-License-Identifier: Apache-2.0
// Global memory of one launch: each tensor in an allocation of exactly its size between poisoned
// guards, with the core that stored each byte and each 32-byte block.
#pragma once

#include <cstdlib>

#include "twin_state.h"

namespace twin {

constexpr int64_t kGuardBytes = 512;  // also the alignment that torch_npu allocates with

enum class Role : int32_t { kInput, kOutput, kInOut };

struct Region {
  const char* name;
  Role role;
  uint8_t* begin;
  int64_t bytes;
  std::vector<int16_t> byte_owner, block_owner;  // -1: nobody

  Region(const char* region_name, Role region_role, const void* source, int64_t size)
      : name(region_name), role(region_role), bytes(size) {
    const int64_t whole = (size + 3 * kGuardBytes - 1) / kGuardBytes * kGuardBytes;
    auto* block = static_cast<uint8_t*>(aligned_alloc(kGuardBytes, whole));
    if (block == nullptr) Fail("%s: %lld bytes cannot be allocated", name, (long long)size);
    memset(block, kPoison, whole);
    begin = block + kGuardBytes;
    memcpy(begin, source, size);
    byte_owner.assign(size, -1);
    block_owner.assign(RoundUp(size) / kBlockBytes, -1);
  }
  Region(const Region&) = delete;
  ~Region() { free(begin - kGuardBytes); }

  void Load(const uint8_t* from, int64_t size, const char* what) const {
    CheckBounds(from, size, what);
    if (role == Role::kOutput) Fail("%s: reads the output %s", what, name);
    for (int64_t i = from - begin; role == Role::kInOut && i < from - begin + size; i++) {
      if (byte_owner[i] >= 0) Fail("%s: reads byte %lld of %s that this launch stored", what,
                                   (long long)i, name);
    }
  }

  void Store(uint8_t* to, int64_t size, int core_index, const char* what) {
    CheckBounds(to, size, what);
    if (role == Role::kInput) Fail("%s: stores into the input %s", what, name);
    const int64_t first = to - begin, end = first + size;
    for (int64_t i = first; i < end; i++) {
      int16_t& owner = byte_owner[i];
      if (owner >= 0 && owner != core_index) {
        Fail("%s: byte %lld of %s is stored by the cores %d and %d", what, (long long)i, name,
             owner, core_index);
      }
      if (owner == core_index) {
        Fail("%s: byte %lld of %s is stored twice by core %d", what, (long long)i, name, owner);
      }
      owner = static_cast<int16_t>(core_index);
    }
    // The device is said to store whole blocks at a core's block tails: none may be shared.
    for (int64_t i = first / kBlockBytes; i * kBlockBytes < end; i++) {
      int16_t& owner = block_owner[i];
      if (owner >= 0 && owner != core_index) {
        Fail("%s: the 32-byte block at byte %lld of %s is shared by the cores %d and %d", what,
             (long long)(i * kBlockBytes), name, owner, core_index);
      }
      owner = static_cast<int16_t>(core_index);
    }
  }

  // After all cores: what no checked access can have done, and what was left undone.
  void Finish(const void* source) const {
    for (int64_t i = 0; i < kGuardBytes; i++) {
      if (begin[i - kGuardBytes] != kPoison || begin[bytes + i] != kPoison) {
        Fail("%s: a raw pointer wrote outside the tensor", name);
      }
    }
    if (role == Role::kInput && memcmp(begin, source, bytes) != 0) {
      Fail("%s: a raw pointer wrote into the input", name);
    }
    for (int64_t i = 0; role == Role::kOutput && i < bytes; i++) {
      if (byte_owner[i] < 0) Fail("%s: byte %lld was not stored", name, (long long)i);
    }
  }

 private:
  void CheckBounds(const uint8_t* at, int64_t size, const char* what) const {
    if (at < begin || size < 0 || at - begin + size > bytes) {
      Fail("%s: bytes %lld to %lld of %s, which has %lld", what, (long long)(at - begin),
           (long long)(at - begin + size), name, (long long)bytes);
    }
  }
};

inline std::vector<Region*>& regions() {
  static std::vector<Region*> all;
  return all;
}

// The guards keep one tensor's end apart from the next one's begin.
inline Region& RegionOf(const void* address, const char* what) {
  const auto* byte = static_cast<const uint8_t*>(address);
  for (Region* region : regions()) {
    if (byte >= region->begin && byte <= region->begin + region->bytes) return *region;
  }
  Fail("%s: the address is in no tensor of this launch", what);
}

}  // namespace twin
