// SPDX-License-Identifier: Apache-2.0
// AscendC's copies between global and local memory, with the limits of Atlas A2: DataCopyPad takes
// 1 to 4095 blocks of at most 2^21 - 1 bytes, DataCopy whole 32-byte blocks (basic_api, CANN 8.1).
#pragma once

#include "twin_pipe.h"

namespace AscendC {

struct DataCopyExtParams {
  DataCopyExtParams() = default;
  DataCopyExtParams(uint16_t count, uint32_t length, uint32_t source_stride,
                    uint32_t destination_stride, uint32_t reserved)
      : blockCount(count), blockLen(length), srcStride(source_stride),
        dstStride(destination_stride), rsv(reserved) {}
  uint16_t blockCount = 1;
  uint32_t blockLen = 0, srcStride = 0, dstStride = 0, rsv = 0;
};

template <typename T>
struct DataCopyPadExtParams {
  DataCopyPadExtParams() = default;
  DataCopyPadExtParams(bool pad, uint8_t left, uint8_t right, T value)
      : isPad(pad), leftPadding(left), rightPadding(right), paddingValue(value) {}
  bool isPad = false;
  uint8_t leftPadding = 0, rightPadding = 0;
  T paddingValue = 0;
};

template <typename T>
void CheckPad(const DataCopyExtParams& params) {
  if (params.blockCount < 1 || params.blockCount > 4095) {
    twin::Fail("DataCopyPad: blockCount %u is not in 1 to 4095", unsigned(params.blockCount));
  }
  if (params.blockLen < 1 || params.blockLen > 2097151) {
    twin::Fail("DataCopyPad: blockLen %u is not in 1 to 2097151", params.blockLen);
  }
  if (params.blockLen % sizeof(T) != 0) {
    twin::Fail("DataCopyPad: blockLen %u is not whole elements of %d bytes", params.blockLen,
               int(sizeof(T)));
  }
}

// The strides are gaps: bytes in global memory, 32-byte blocks in local memory.
template <typename T>
void DataCopyPad(const LocalTensor<T>& destination, const GlobalTensor<T>& source,
                 const DataCopyExtParams& params, const DataCopyPadExtParams<T>& padding) {
  CheckPad<T>(params);
  if (padding.isPad || padding.leftPadding || padding.rightPadding) {
    twin::Fail("DataCopyPad: padding with a value is not in the twin's subset");
  }
  twin::Core& core = twin::core();
  const uint32_t operation = core.Begin(twin::kMte2);
  const int64_t length = params.blockLen, whole = twin::RoundUp(length);
  for (int64_t i = 0; i < params.blockCount; i++) {
    const uint8_t* from = source.Span(i * (length + params.srcStride), length, "DataCopyPad");
    const int64_t to = destination.Span(i * (whole + params.dstStride * twin::kBlockBytes), whole,
                                        "DataCopyPad");
    source.region().Load(from, length, "DataCopyPad");
    core.Write(twin::kMte2, operation, to, length, true, "DataCopyPad");
    // The device fills the rest of the last block with something.
    core.Write(twin::kMte2, operation, to + length, whole - length, false, "DataCopyPad");
    memcpy(core.unified + to, from, length);
    memset(core.unified + to + length, twin::kPoison, whole - length);
  }
}

template <typename T>
void DataCopyPad(const GlobalTensor<T>& destination, const LocalTensor<T>& source,
                 const DataCopyExtParams& params) {
  CheckPad<T>(params);
  twin::Core& core = twin::core();
  const uint32_t operation = core.Begin(twin::kMte3);
  const int64_t length = params.blockLen, whole = twin::RoundUp(length);
  for (int64_t i = 0; i < params.blockCount; i++) {
    uint8_t* to = destination.Span(i * (length + params.dstStride), length, "DataCopyPad");
    const int64_t from = source.Span(i * (whole + params.srcStride * twin::kBlockBytes), whole,
                                     "DataCopyPad");
    core.Read(twin::kMte3, operation, from, length, "DataCopyPad");
    destination.region().Store(to, length, core.index, "DataCopyPad");
    memcpy(to, core.unified + from, length);
  }
}

template <typename T>
int64_t WholeBlocks(uint32_t count) {
  const int64_t bytes = int64_t(count) * int64_t(sizeof(T));
  if (bytes <= 0 || bytes % twin::kBlockBytes != 0 || bytes / twin::kBlockBytes > 65535) {
    twin::Fail("DataCopy: %lld bytes are not 1 to 65535 blocks of 32", (long long)bytes);
  }
  return bytes;
}

template <typename T>
void DataCopy(const LocalTensor<T>& destination, const GlobalTensor<T>& source, uint32_t count) {
  const int64_t bytes = WholeBlocks<T>(count);
  twin::Core& core = twin::core();
  const uint8_t* from = source.Span(0, bytes, "DataCopy");
  const int64_t to = destination.Span(0, bytes, "DataCopy");
  source.region().Load(from, bytes, "DataCopy");
  core.Write(twin::kMte2, core.Begin(twin::kMte2), to, bytes, true, "DataCopy");
  memcpy(core.unified + to, from, bytes);
}

template <typename T>
void DataCopy(const GlobalTensor<T>& destination, const LocalTensor<T>& source, uint32_t count) {
  const int64_t bytes = WholeBlocks<T>(count);
  twin::Core& core = twin::core();
  uint8_t* to = destination.Span(0, bytes, "DataCopy");
  const int64_t from = source.Span(0, bytes, "DataCopy");
  core.Read(twin::kMte3, core.Begin(twin::kMte3), from, bytes, "DataCopy");
  destination.region().Store(to, bytes, core.index, "DataCopy");
  memcpy(to, core.unified + from, bytes);
}

// A dynamic input: u64 byte offset of the address table; per tensor its dimension count and index
// (u32 each) and its dimensions (u64 each); then one address per tensor.
class ListTensorDesc {
 public:
  ListTensorDesc() = default;
  explicit ListTensorDesc(void* data, uint32_t = 0xffffffff, uint32_t = 0xffffffff) { Init(data); }
  void Init(void* data, uint32_t = 0xffffffff, uint32_t = 0xffffffff) {
    const uint64_t bytes = twin::RegionOf(data, "ListTensorDesc").bytes;
    words_.SetGlobalBuffer(static_cast<uint64_t*>(data), bytes / 8);
    table_ = static_cast<uint32_t>(words_.GetValue(0) / 8);
  }
  uint32_t GetSize() const { return static_cast<uint32_t>(words_.GetSize()) - table_; }
  template <typename T>
  T* GetDataPtr(uint32_t index) const {
    if (index >= GetSize()) {
      twin::Fail("ListTensorDesc::GetDataPtr: tensor %u of %u", index, GetSize());
    }
    return reinterpret_cast<T*>(words_.GetValue(table_ + index));
  }

 private:
  GlobalTensor<uint64_t> words_;
  uint32_t table_ = 0;
};

}  // namespace AscendC
