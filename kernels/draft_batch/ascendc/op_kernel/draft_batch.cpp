// SPDX-License-Identifier: Apache-2.0
// draft_batch: accepted tokens to the drafter's next input rows. See ../../reference.py.
//
// Requests are ragged, so cores own blocks of drafter rows, not requests: each core scans the
// requests and writes the part of each that falls into its rows.
#include "kernel_operator.h"
#include "draft_batch_tiling_data.h"

namespace draft_batch_op {

using namespace AscendC;

// `event`'s second pipe waits for all that its first has been given so far.
template <HardEvent event>
__aicore__ inline void Sync() {
  const event_t id = static_cast<event_t>(GetTPipePtr()->FetchEventID(event));
  SetFlag<event>(id);
  WaitFlag<event>(id);
}

template <typename T>
__aicore__ inline void Load(const LocalTensor<T>& local, const GlobalTensor<T>& global,
                            uint32_t count) {
  DataCopyPad(local, global,
              DataCopyExtParams(1, count * static_cast<uint32_t>(sizeof(T)), 0, 0, 0),
              DataCopyPadExtParams<T>(false, 0, 0, 0));
}

template <typename T>
__aicore__ inline void Store(const GlobalTensor<T>& global, const LocalTensor<T>& local,
                             uint32_t count) {
  DataCopyPad(global, local,
              DataCopyExtParams(1, count * static_cast<uint32_t>(sizeof(T)), 0, 0, 0));
}

// An input of int32 or int64, as the caller's buffers have it.
class Integers {
 public:
  __aicore__ inline void Init(GM_ADDR address, uint64_t size, bool wide) {
    wide_ = wide;
    if (wide) {
      global64_.SetGlobalBuffer(reinterpret_cast<__gm__ int64_t*>(address), size);
    } else {
      global32_.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t*>(address), size);
    }
  }
  __aicore__ inline void Fetch(const LocalTensor<int64_t>& local, uint64_t offset, uint32_t count) {
    local64_ = local;
    local32_ = local.ReinterpretCast<int32_t>();
    if (wide_) {
      Load(local64_, global64_[offset], count);
    } else {
      Load(local32_, global32_[offset], count);
    }
  }
  __aicore__ inline int64_t At(uint32_t index) const {
    return wide_ ? local64_.GetValue(index) : static_cast<int64_t>(local32_.GetValue(index));
  }

 private:
  bool wide_ = false;
  GlobalTensor<int64_t> global64_;
  GlobalTensor<int32_t> global32_;
  LocalTensor<int64_t> local64_;
  LocalTensor<int32_t> local32_;
};

// Rows i .. end - 1 of request b, whose target rows are first .. first + last.
struct Segment {
  uint32_t b;
  int64_t first, last;
  uint32_t i, end;
};

class DraftBatch {
 public:
  __aicore__ inline DraftBatch(const DraftBatchTilingData& tiling) : tiling_(tiling) {}

  __aicore__ inline void InitInputs(GM_ADDR inputIds, GM_ADDR positions, GM_ADDR queryStart,
                                    GM_ADDR isTree, GM_ADDR pathRows, GM_ADDR pathLength,
                                    GM_ADDR pathOutput, GM_ADDR nextTokens, GM_ADDR linearSlots) {
    const uint64_t path = static_cast<uint64_t>(tiling_.requests) * tiling_.pathColumns;
    inputIds_.Init(inputIds, tiling_.targetRows, tiling_.wideInputIds != 0);
    queryStart_.Init(queryStart, tiling_.requests + 1, tiling_.wideQueryStart != 0);
    Bind(positions_, positions, tiling_.targetRows);
    Bind(linearSlots_, linearSlots, tiling_.targetRows);
    Bind(pathRows_, pathRows, path);
    Bind(pathOutput_, pathOutput, path);
    Bind(pathLength_, pathLength, tiling_.requests);
    Bind(nextTokens_, nextTokens, tiling_.requests);
    isTree_.SetGlobalBuffer(reinterpret_cast<__gm__ uint8_t*>(isTree), tiling_.requests);
  }

  __aicore__ inline void InitOutputs(GM_ADDR tokens, GM_ADDR draftPositions, GM_ADDR hiddenRows,
                                     GM_ADDR slots, GM_ADDR draftStart, GM_ADDR sampleRows) {
    Bind(tokens_, tokens, tiling_.draftRows);
    Bind(draftPositions_, draftPositions, tiling_.draftRows);
    Bind(hiddenRows_, hiddenRows, tiling_.draftRows);
    Bind(slots_, slots, tiling_.draftRows);
    Bind(draftStart_, draftStart, tiling_.requests + 1);
    Bind(sampleRows_, sampleRows, tiling_.requests);
  }

  __aicore__ inline void Process() {
    LoadRequests();
    row_ = static_cast<uint32_t>(GetBlockIdx()) * tiling_.rowsPerCore;
    rowEnd_ = Least(row_ + tiling_.rowsPerCore, tiling_.draftRows);
    // The core's entries of draftStart and sampleRows.
    const uint32_t own = static_cast<uint32_t>(GetBlockIdx()) * tiling_.requestsPerCore;
    int64_t at = 0;
    for (uint32_t b = 0; b < tiling_.requests; b++) {
      const int64_t first = queryStart_.At(b), count = queryStart_.At(b + 1) - first;
      const bool tree = isTreeLocal_.GetValue(b) != 0;
      if (b >= own && b < own + tiling_.requestsPerCore) {
        startLocal_.SetValue(b - own, at);
        sampleLocal_.SetValue(b - own, at + (tree ? lengthLocal_.GetValue(b) : count - 1));
      }
      const int64_t drafts = tree ? tiling_.depth + 1 : (count > 0 ? count : 0);
      if (row_ < rowEnd_ && at + drafts > row_) Request(b, tree, at, at + drafts, first, count);
      at += drafts;
    }
    while (row_ < rowEnd_) Put(0, 0, 0, -1);
    Flush();
    StoreRequests(own, at);
  }

 private:
  static __aicore__ inline uint32_t Least(uint32_t a, uint32_t b) { return a < b ? a : b; }
  static __aicore__ inline int64_t LeastOf(int64_t a, int64_t b) { return a < b ? a : b; }

  static __aicore__ inline void Bind(GlobalTensor<int64_t>& tensor, GM_ADDR address,
                                     uint64_t size) {
    tensor.SetGlobalBuffer(reinterpret_cast<__gm__ int64_t*>(address), size);
  }

  __aicore__ inline LocalTensor<int64_t> Local(TBuf<TPosition::VECCALC>& buffer, uint32_t size) {
    pipe_.InitBuffer(buffer, size * static_cast<uint32_t>(sizeof(int64_t)));
    return buffer.Get<int64_t>();
  }

  __aicore__ inline void LoadRequests() {
    const uint32_t requests = tiling_.requests;
    queryStart_.Fetch(Local(startsBuffer_, requests + 1), 0, requests + 1);
    pipe_.InitBuffer(treeBuffer_, requests);
    isTreeLocal_ = treeBuffer_.Get<uint8_t>();
    lengthLocal_ = Local(lengthBuffer_, requests);
    nextLocal_ = Local(nextBuffer_, requests);
    Load(isTreeLocal_, isTree_, requests);
    Load(lengthLocal_, pathLength_, requests);
    Load(nextLocal_, nextTokens_, requests);
    startLocal_ = Local(startBuffer_, tiling_.requestsPerCore);
    sampleLocal_ = Local(sampleBuffer_, tiling_.requestsPerCore);
    idLocal_ = Local(idBuffer_, kTile);
    positionLocal_ = Local(positionBuffer_, kTile);
    slotLocal_ = Local(slotBuffer_, kTile);
    pathRowLocal_ = Local(pathRowBuffer_, tiling_.depth + 1);
    pathOutputLocal_ = Local(pathOutputBuffer_, tiling_.depth + 1);
    outTokens_ = Local(outTokenBuffer_, kTile);
    outPositions_ = Local(outPositionBuffer_, kTile);
    outHiddenRows_ = Local(outHiddenBuffer_, kTile);
    outSlots_ = Local(outSlotBuffer_, kTile);
    Sync<HardEvent::MTE2_S>();
  }

  __aicore__ inline void StoreRequests(uint32_t own, int64_t rows) {
    if (own > tiling_.requests) return;
    const uint32_t starts = Least(tiling_.requestsPerCore, tiling_.requests + 1 - own);
    const uint32_t samples = Least(tiling_.requestsPerCore, tiling_.requests - own);
    if (samples < starts) startLocal_.SetValue(samples, rows);
    Sync<HardEvent::S_MTE3>();
    Store(draftStart_[own], startLocal_, starts);
    if (samples > 0) Store(sampleRows_[own], sampleLocal_, samples);
  }

  // The drafter rows `at` .. `end` - 1 are request b's; the core's next row is among them.
  __aicore__ inline void Request(uint32_t b, bool tree, int64_t at, int64_t end, int64_t first,
                                 int64_t count) {
    const uint32_t stop = static_cast<uint32_t>(LeastOf(end, rowEnd_));
    // A batch that claims rows it does not have is not read: it gives padding.
    if (first < 0 || count < 1 || first + count > tiling_.targetRows) {
      while (row_ < stop) Put(0, 0, 0, -1);
      return;
    }
    while (row_ < stop) {
      const uint32_t i = static_cast<uint32_t>(row_ - at);
      const Segment part = {b, first, count - 1, i, i + Least(stop - row_, kTile)};
      if (tree) {
        TreeRows(part);
      } else {
        ChainRows(part);
      }
    }
  }

  // L accepted tokens and the bonus with the hidden states they were drawn at, then padding.
  __aicore__ inline void TreeRows(const Segment& part) {
    const uint64_t path = static_cast<uint64_t>(part.b) * tiling_.pathColumns + part.i;
    const int64_t length = lengthLocal_.GetValue(part.b);
    // A tree cut by the scheduler may have fewer target rows than D+1: padding repeats the last.
    const int64_t low = LeastOf(part.i, part.last), high = LeastOf(part.end - 1, part.last);
    Sync<HardEvent::S_MTE2>();
    Load(pathRowLocal_, pathRows_[path], part.end - part.i);
    Load(pathOutputLocal_, pathOutput_[path], part.end - part.i);
    LoadLinear(part.first + low, static_cast<uint32_t>(high - low + 1));
    Sync<HardEvent::MTE2_S>();
    for (uint32_t i = part.i; i < part.end; i++) {
      const bool padded = i > length;
      const uint32_t linear = static_cast<uint32_t>(LeastOf(i, part.last) - low);
      Put(padded ? 0 : pathOutputLocal_.GetValue(i - part.i), positionLocal_.GetValue(linear),
          part.first + pathRowLocal_.GetValue(i - part.i),
          padded ? -1 : slotLocal_.GetValue(linear));
    }
  }

  // The target rows themselves, tokens shifted left by one.
  __aicore__ inline void ChainRows(const Segment& part) {
    const uint32_t shifted = static_cast<uint32_t>(LeastOf(part.end, part.last) - part.i);
    Sync<HardEvent::S_MTE2>();
    if (shifted > 0) inputIds_.Fetch(idLocal_, part.first + part.i + 1, shifted);
    LoadLinear(part.first + part.i, part.end - part.i);
    Sync<HardEvent::MTE2_S>();
    for (uint32_t i = part.i; i < part.end; i++) {
      const int64_t token = i < part.last ? inputIds_.At(i - part.i) : nextLocal_.GetValue(part.b);
      Put(token, positionLocal_.GetValue(i - part.i), part.first + i,
          slotLocal_.GetValue(i - part.i));
    }
  }

  __aicore__ inline void LoadLinear(int64_t row, uint32_t rows) {
    Load(positionLocal_, positions_[row], rows);
    Load(slotLocal_, linearSlots_[row], rows);
  }

  __aicore__ inline void Put(int64_t token, int64_t position, int64_t hiddenRow, int64_t slot) {
    outTokens_.SetValue(put_, token);
    outPositions_.SetValue(put_, position);
    outHiddenRows_.SetValue(put_, hiddenRow);
    outSlots_.SetValue(put_, slot);
    row_++;
    put_++;
    if (put_ == kTile) Flush();
  }

  __aicore__ inline void Flush() {
    if (put_ == 0) return;
    const uint32_t row = row_ - put_;
    Sync<HardEvent::S_MTE3>();
    Store(tokens_[row], outTokens_, put_);
    Store(draftPositions_[row], outPositions_, put_);
    Store(hiddenRows_[row], outHiddenRows_, put_);
    Store(slots_[row], outSlots_, put_);
    Sync<HardEvent::MTE3_S>();
    put_ = 0;
  }

  DraftBatchTilingData tiling_;
  TPipe pipe_;
  Integers inputIds_, queryStart_;
  GlobalTensor<int64_t> positions_, linearSlots_, pathRows_, pathOutput_, pathLength_, nextTokens_;
  GlobalTensor<int64_t> tokens_, draftPositions_, hiddenRows_, slots_, draftStart_, sampleRows_;
  GlobalTensor<uint8_t> isTree_;
  TBuf<TPosition::VECCALC> startsBuffer_, treeBuffer_, lengthBuffer_, nextBuffer_, startBuffer_;
  TBuf<TPosition::VECCALC> sampleBuffer_, idBuffer_, positionBuffer_, slotBuffer_, pathRowBuffer_;
  TBuf<TPosition::VECCALC> pathOutputBuffer_, outTokenBuffer_, outPositionBuffer_;
  TBuf<TPosition::VECCALC> outHiddenBuffer_, outSlotBuffer_;
  LocalTensor<uint8_t> isTreeLocal_;
  LocalTensor<int64_t> lengthLocal_, nextLocal_, startLocal_, sampleLocal_;
  LocalTensor<int64_t> idLocal_, positionLocal_, slotLocal_, pathRowLocal_, pathOutputLocal_;
  LocalTensor<int64_t> outTokens_, outPositions_, outHiddenRows_, outSlots_;
  // The next row to put, the end of the core's rows, and the rows in the tile.
  uint32_t row_ = 0, rowEnd_ = 0, put_ = 0;
};

}  // namespace draft_batch_op

extern "C" __global__ __aicore__ void draft_batch(
    GM_ADDR inputIds, GM_ADDR positions, GM_ADDR queryStart, GM_ADDR isTree, GM_ADDR pathRows,
    GM_ADDR pathLength, GM_ADDR pathOutput, GM_ADDR nextTokens, GM_ADDR linearSlots, GM_ADDR tokens,
    GM_ADDR draftPositions, GM_ADDR hiddenRows, GM_ADDR slots, GM_ADDR draftStart,
    GM_ADDR sampleRows, GM_ADDR workspace, GM_ADDR tiling) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  REGISTER_TILING_DEFAULT(DraftBatchTilingData);
  GET_TILING_DATA_WITH_STRUCT(DraftBatchTilingData, tilingData, tiling);
  draft_batch_op::DraftBatch op(tilingData);
  op.InitInputs(inputIds, positions, queryStart, isTree, pathRows, pathLength, pathOutput,
                nextTokens, linearSlots);
  op.InitOutputs(tokens, draftPositions, hiddenRows, slots, draftStart, sampleRows);
  op.Process();
}
