// SPDX-License-Identifier: Apache-2.0
// AscendC's tensors: handles of global and local memory that check each access.
#pragma once

#include "twin_global.h"

namespace AscendC {

template <typename T>
class GlobalTensor {
 public:
  void SetGlobalBuffer(T* buffer, uint64_t size) {
    region_ = &twin::RegionOf(buffer, "SetGlobalBuffer");
    begin_ = reinterpret_cast<uint8_t*>(buffer);
    size_ = static_cast<int64_t>(size);
    if (begin_ - region_->begin + Bytes(size_) > region_->bytes) {
      twin::Fail("SetGlobalBuffer: %lld bytes at byte %lld of %s, which has %lld",
                 (long long)Bytes(size_), (long long)(begin_ - region_->begin), region_->name,
                 (long long)region_->bytes);
    }
    if (reinterpret_cast<uintptr_t>(buffer) % sizeof(T) != 0) {
      twin::Fail("SetGlobalBuffer: %s is not aligned to its elements", region_->name);
    }
  }

  GlobalTensor operator[](uint64_t offset) const {
    if (offset > static_cast<uint64_t>(size_)) {
      twin::Fail("GlobalTensor: offset %lld in %lld elements of %s", (long long)offset,
                 (long long)size_, Name());
    }
    GlobalTensor part = *this;
    part.begin_ += Bytes(static_cast<int64_t>(offset));
    part.size_ -= static_cast<int64_t>(offset);
    return part;
  }

  T GetValue(uint64_t offset) const {
    const uint8_t* at = (*this)[offset].begin_;
    if (offset >= static_cast<uint64_t>(size_)) {
      twin::Fail("GlobalTensor::GetValue: element %lld of %lld of %s", (long long)offset,
                 (long long)size_, Name());
    }
    region_->Load(at, sizeof(T), "GlobalTensor::GetValue");
    T value;
    memcpy(&value, at, sizeof(T));
    return value;
  }

  void SetValue(uint64_t, T) {
    twin::Fail("GlobalTensor::SetValue: %s: a scalar store goes through the core's data cache;"
               " use DataCopyPad", Name());
  }

  uint64_t GetSize() const { return size_; }

  // For the twin's copies: `bytes` at byte `offset` lie in this tensor, not just in its region.
  uint8_t* Span(int64_t offset, int64_t bytes, const char* what) const {
    if (region_ == nullptr) twin::Fail("%s: a GlobalTensor without SetGlobalBuffer", what);
    if (offset + bytes > Bytes(size_)) {
      twin::Fail("%s: bytes %lld to %lld of a GlobalTensor in %s that has %lld", what,
                 (long long)offset, (long long)(offset + bytes), Name(), (long long)Bytes(size_));
    }
    return begin_ + offset;
  }
  twin::Region& region() const { return *region_; }

 private:
  static int64_t Bytes(int64_t elements) { return elements * static_cast<int64_t>(sizeof(T)); }
  const char* Name() const { return region_ == nullptr ? "nothing" : region_->name; }

  twin::Region* region_ = nullptr;
  uint8_t* begin_ = nullptr;
  int64_t size_ = 0;  // elements
};

template <typename T>
class LocalTensor {
 public:
  LocalTensor() = default;
  LocalTensor(int buffer, int64_t begin, int64_t bytes)
      : buffer_(buffer), generation_(twin::core().buffers[buffer].generation), begin_(begin),
        bytes_(bytes) {}

  T GetValue(uint32_t index) const {
    const int64_t at = At(index, "LocalTensor::GetValue");
    twin::Core& core = twin::core();
    core.Read(twin::kScalar, core.Begin(twin::kScalar), at, sizeof(T), "LocalTensor::GetValue");
    T value;
    memcpy(&value, core.unified + at, sizeof(T));
    return value;
  }

  template <typename U>
  void SetValue(uint32_t index, U value) const {
    const int64_t at = At(index, "LocalTensor::SetValue");
    twin::Core& core = twin::core();
    core.Write(twin::kScalar, core.Begin(twin::kScalar), at, sizeof(T), true,
               "LocalTensor::SetValue");
    const T stored = static_cast<T>(value);
    memcpy(core.unified + at, &stored, sizeof(T));
  }

  LocalTensor operator[](uint32_t offset) const {
    Check("LocalTensor");
    if (offset > GetSize()) {
      twin::Fail("LocalTensor: offset %u in %u elements", offset, GetSize());
    }
    LocalTensor part = *this;
    part.begin_ += int64_t(offset) * sizeof(T);
    part.bytes_ -= int64_t(offset) * sizeof(T);
    return part;
  }

  template <typename U>
  LocalTensor<U> ReinterpretCast() const {
    Check("ReinterpretCast");
    LocalTensor<U> same(buffer_, begin_, bytes_);
    return same;
  }

  uint32_t GetSize() const { return static_cast<uint32_t>(bytes_ / sizeof(T)); }

  // Where `bytes` of a copy lie in the unified buffer.
  int64_t Span(int64_t offset, int64_t bytes, const char* what) const {
    Check(what);
    if (begin_ % twin::kBlockBytes != 0) {
      twin::Fail("%s: the local address %lld is not aligned to 32 bytes", what, (long long)begin_);
    }
    if (offset + bytes > bytes_) {
      twin::Fail("%s: bytes %lld to %lld of a LocalTensor that has %lld", what, (long long)offset,
                 (long long)(offset + bytes), (long long)bytes_);
    }
    return begin_ + offset;
  }
  int buffer() const { return buffer_; }

  void Check(const char* what) const {
    if (buffer_ < 0) twin::Fail("%s: a LocalTensor that was never allocated", what);
    const twin::Buffer& buffer = twin::core().buffers[buffer_];
    if (buffer.generation == generation_) return;
    const char* why = buffer.state == twin::State::kFree       ? "was freed"
                      : buffer.state == twin::State::kQueued   ? "waits in its queue: DeQue it"
                      : buffer.state == twin::State::kDequeued ? "was replaced by DeQue"
                                                               : "was allocated anew";
    twin::Fail("%s: the queue tensor %s", what, why);
  }

 private:
  int64_t At(uint32_t index, const char* what) const {
    Check(what);
    if (index >= GetSize()) twin::Fail("%s: element %u of %u", what, index, GetSize());
    return begin_ + int64_t(index) * sizeof(T);
  }

  int buffer_ = -1;
  uint32_t generation_ = 0;
  int64_t begin_ = 0, bytes_ = 0;
};

}  // namespace AscendC
