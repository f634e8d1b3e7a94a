// SPDX-License-Identifier: Apache-2.0
// kv_commit: the accepted path's K/V from the scratch to its page slots, for all layers of a
// KV-cache group. See ../../reference.py.
//
// A core stores the slots of whole groups of requests, and copies a contiguous share of the
// (request, layer, K or V) items. It finds each item's slots itself: no core waits for another.
#include "kernel_operator.h"
#include "kv_commit_tiling_data.h"

namespace kv_commit_op {

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

class KvCommit {
 public:
  __aicore__ inline KvCommit(const KvCommitTilingData& tiling) : tiling_(tiling) {}

  __aicore__ inline void Init(GM_ADDR pathRows, GM_ADDR linearSlots, GM_ADDR slots) {
    const uint64_t nodes = static_cast<uint64_t>(tiling_.batch) * tiling_.rows;
    const uint64_t steps = static_cast<uint64_t>(tiling_.batch) * tiling_.pathColumns;
    pathRows_.SetGlobalBuffer(reinterpret_cast<__gm__ int64_t*>(pathRows), steps);
    linearSlots_.SetGlobalBuffer(reinterpret_cast<__gm__ int64_t*>(linearSlots), nodes);
    slots_.SetGlobalBuffer(reinterpret_cast<__gm__ int64_t*>(slots), nodes);
    pipe_.InitBuffer(pathBuffer_, kGroup * tiling_.pathColumns * sizeof(int64_t));
    pipe_.InitBuffer(linearBuffer_, kGroup * tiling_.rows * sizeof(int64_t));
    pipe_.InitBuffer(slotBuffer_, kGroup * tiling_.rows * sizeof(int64_t));
    pipe_.InitBuffer(copies_, kCopies, tiling_.tileBytes);
    pathLocal_ = pathBuffer_.Get<int64_t>();
    linearLocal_ = linearBuffer_.Get<int64_t>();
    slotLocal_ = slotBuffer_.Get<int64_t>();
  }

  __aicore__ inline void InitLayers(GM_ADDR keyScratch, GM_ADDR valueScratch, GM_ADDR keyCache,
                                    GM_ADDR valueCache) {
    scratch_[0].Init(reinterpret_cast<__gm__ void*>(keyScratch));
    scratch_[1].Init(reinterpret_cast<__gm__ void*>(valueScratch));
    cache_[0].Init(reinterpret_cast<__gm__ void*>(keyCache));
    cache_[1].Init(reinterpret_cast<__gm__ void*>(valueCache));
  }

  __aicore__ inline void Process() {
    const uint32_t core = static_cast<uint32_t>(GetBlockIdx());
    const uint32_t first = core * tiling_.groupsPerCore * kGroup;
    const uint32_t end = Least(first + tiling_.groupsPerCore * kGroup, tiling_.batch);
    for (uint32_t b = first; b < end; b += kGroup) StoreSlots(b, Least(kGroup, end - b));
    CopyItems(core * tiling_.itemsPerCore);
  }

 private:
  static __aicore__ inline uint32_t Least(uint32_t a, uint32_t b) { return a < b ? a : b; }

  __aicore__ inline void LoadRequests(uint32_t b, uint32_t requests) {
    // What the last requests left may still be read.
    Sync<HardEvent::S_MTE2>();
    Load(pathLocal_, pathRows_[static_cast<uint64_t>(b) * tiling_.pathColumns],
         requests * tiling_.pathColumns);
    Load(linearLocal_, linearSlots_[static_cast<uint64_t>(b) * tiling_.rows],
         requests * tiling_.rows);
    Sync<HardEvent::MTE2_S>();
  }

  // The row of request r's i-th accepted node, 0 for none: row 0 is the root, which the forward
  // itself wrote. A path that leaves its tree is not followed.
  __aicore__ inline uint32_t Node(uint32_t r, uint32_t i) {
    const int64_t row = pathLocal_.GetValue(r * tiling_.pathColumns + i);
    return row > 0 && row < static_cast<int64_t>(tiling_.rows) ? static_cast<uint32_t>(row) : 0;
  }

  // A tree of fewer nodes than D has no longer path than that.
  __aicore__ inline uint32_t Reach() const { return Least(tiling_.pathColumns, tiling_.rows); }

  __aicore__ inline void StoreSlots(uint32_t b, uint32_t requests) {
    LoadRequests(b, requests);
    for (uint32_t r = 0; r < requests; r++) {
      const uint32_t base = r * tiling_.rows;
      for (uint32_t row = 0; row < tiling_.rows; row++) slotLocal_.SetValue(base + row, -1);
      for (uint32_t i = 1; i < Reach(); i++) {
        const uint32_t row = Node(r, i);
        if (row != 0) slotLocal_.SetValue(base + row, linearLocal_.GetValue(base + i));
      }
    }
    Sync<HardEvent::S_MTE3>();
    Store(slots_[static_cast<uint64_t>(b) * tiling_.rows], slotLocal_, requests * tiling_.rows);
    Sync<HardEvent::MTE3_S>();
  }

  // Items go request by request, so that a request is loaded once per core.
  __aicore__ inline void CopyItems(uint32_t first) {
    const uint32_t perRequest = 2 * tiling_.layers;
    const uint32_t end = Least(first + tiling_.itemsPerCore, perRequest * tiling_.batch);
    for (uint32_t item = first; item < end; item++) {
      const uint32_t b = item / perRequest, layer = item % perRequest / 2;
      if (item == first || item % perRequest == 0) LoadRequests(b, 1);
      CopyPath(b, layer, item % 2);
    }
  }

  __aicore__ inline void CopyPath(uint32_t b, uint32_t layer, uint32_t value) {
    GlobalTensor<uint8_t> scratch, cache;
    scratch.SetGlobalBuffer(scratch_[value].GetDataPtr<uint8_t>(layer),
                            tiling_.scratchRows * tiling_.rowBytes);
    cache.SetGlobalBuffer(cache_[value].GetDataPtr<uint8_t>(layer),
                          tiling_.cacheRows * tiling_.rowBytes);
    for (uint32_t i = 1; i < Reach(); i++) {
      const uint32_t node = Node(0, i);
      if (node == 0) continue;
      const int64_t slot = linearLocal_.GetValue(i);
      // -1 is a row that must not be written; beyond the pages is nothing to write to.
      if (slot < 0 || slot >= static_cast<int64_t>(tiling_.cacheRows)) continue;
      const uint64_t from = static_cast<uint64_t>(b) * tiling_.rows + node;
      CopyRow(cache[static_cast<uint64_t>(slot) * tiling_.rowBytes],
              scratch[from * tiling_.rowBytes]);
    }
  }

  __aicore__ inline void CopyRow(const GlobalTensor<uint8_t>& to,
                                 const GlobalTensor<uint8_t>& from) {
    const uint32_t bytes = static_cast<uint32_t>(tiling_.rowBytes);
    for (uint32_t at = 0; at < bytes; at += tiling_.tileBytes) {
      const uint32_t size = Least(tiling_.tileBytes, bytes - at);
      LocalTensor<uint8_t> row = copies_.AllocTensor<uint8_t>();
      DataCopy(row, from[at], size);
      copies_.EnQue(row);
      row = copies_.DeQue<uint8_t>();
      DataCopy(to[at], row, size);
      copies_.FreeTensor(row);
    }
  }

  KvCommitTilingData tiling_;
  TPipe pipe_;
  GlobalTensor<int64_t> pathRows_, linearSlots_, slots_;
  ListTensorDesc scratch_[2], cache_[2];  // of K and of V, a tensor per layer
  TBuf<TPosition::VECCALC> pathBuffer_, linearBuffer_, slotBuffer_;
  // Rows only pass through: MTE2 fills them, MTE3 empties them.
  TQueBind<TPosition::VECIN, TPosition::VECOUT, kCopies> copies_;
  LocalTensor<int64_t> pathLocal_, linearLocal_, slotLocal_;
};

}  // namespace kv_commit_op

// keyCacheOut and valueCacheOut are keyCache and valueCache, updated in place.
extern "C" __global__ __aicore__ void kv_commit(GM_ADDR pathRows, GM_ADDR linearSlots,
                                                GM_ADDR keyScratch, GM_ADDR valueScratch,
                                                GM_ADDR keyCache, GM_ADDR valueCache, GM_ADDR slots,
                                                GM_ADDR keyCacheOut, GM_ADDR valueCacheOut,
                                                GM_ADDR workspace, GM_ADDR tiling) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  REGISTER_TILING_DEFAULT(KvCommitTilingData);
  GET_TILING_DATA_WITH_STRUCT(KvCommitTilingData, tilingData, tiling);
  kv_commit_op::KvCommit op(tilingData);
  op.Init(pathRows, linearSlots, slots);
  op.InitLayers(keyScratch, valueScratch, keyCache, valueCache);
  op.Process();
}
