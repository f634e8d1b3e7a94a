// SPDX-License-Identifier: Apache-2.0
// Copies source to target, right for fault 0 and wrong in one way for each other: test_twin.py
// holds what the twin must say of each.
#include "kernel_operator.h"
#include "probe_tiling_data.h"

using namespace AscendC;

template <HardEvent event>
__aicore__ inline void Sync() {
  const event_t id = static_cast<event_t>(GetTPipePtr()->FetchEventID(event));
  SetFlag<event>(id);
  WaitFlag<event>(id);
}

using Queue = TQueBind<TPosition::VECIN, TPosition::VECOUT, 1>;
using Buffer = TBuf<TPosition::VECCALC>;

class Probe {
 public:
  __aicore__ inline Probe(const ProbeTilingData& tiling, GM_ADDR source, GM_ADDR target)
      : tiling_(tiling), sourceAddress_(source), targetAddress_(target) {
    source_.SetGlobalBuffer(reinterpret_cast<__gm__ int64_t*>(source), tiling.size);
    target_.SetGlobalBuffer(reinterpret_cast<__gm__ int64_t*>(target), tiling.size);
    pipe_.InitBuffer(buffer_, tiling.size * 8);
    pipe_.InitBuffer(other_, 64);
    pipe_.InitBuffer(queue_, 2, 64);
    local_ = buffer_.Get<int64_t>();
  }

  __aicore__ inline void Copy() {
    In(local_, source_, tiling_.size);
    Sync<HardEvent::MTE2_MTE3>();
    Out(target_, local_, tiling_.size);
  }

  __aicore__ inline void Global(uint32_t fault) {
    switch (fault) {
      case 1: Out(target_[1], Ready(), tiling_.size); break;
      case 2: In(local_, source_[1], tiling_.size); break;
      case 3: source_.SetGlobalBuffer(reinterpret_cast<__gm__ int64_t*>(sourceAddress_),
                                      tiling_.size + 1); break;
      case 4: Out(source_, Ready(), 1); break;
      case 5: Out(target_, Ready(), tiling_.size - 1); break;
      case 6: target_.SetValue(0, 7); break;
      case 7: In(local_, target_, 1); break;
      case 8: Copy(), reinterpret_cast<int64_t*>(targetAddress_)[tiling_.size] = 7; break;
      case 9: Copy(), reinterpret_cast<int64_t*>(sourceAddress_)[0] = 7; break;
      case 10: Out(target_, Ready(), 4), Out(target_, local_, 1); break;
      case 11: (void)source_.GetValue(tiling_.size); break;
    }
  }

  __aicore__ inline void Cores(uint32_t fault) {
    // Each of two cores stores four elements; the second begins one or two of them too early.
    const uint32_t at = GetBlockIdx() == 0 ? 0 : fault == 20 ? 3 : fault == 21 ? 5 : 4;
    const uint32_t count = GetBlockIdx() == 0 && fault == 21 ? 5 : fault == 21 ? 3 : 4;
    Out(target_[at], Ready(), count);
  }

  __aicore__ inline void Local(uint32_t fault) {
    switch (fault) {
      case 30: (void)local_.GetValue(tiling_.size); break;
      case 31: local_.SetValue(tiling_.size, 1); break;
      case 32: (void)local_.GetValue(0); break;
      case 33: In(Ready()[1], source_, 1); break;
      case 34: DataCopy(local_, source_, 3); break;
      case 35: In(other_.Get<int64_t>()[4], source_, 8); break;
      case 36: pipe_.InitBuffer(huge_, 192 * 1024); break;
      case 37: DataCopyPad(local_, source_, DataCopyExtParams(4096, 8, 0, 0, 0), {}); break;
      case 38: DataCopyPad(local_, source_, DataCopyExtParams(1, 9, 0, 0, 0), {}); break;
      case 39: DataCopyPad(local_, source_, DataCopyExtParams(1, 2097152, 0, 0, 0), {}); break;
      case 40: In(local_, source_, 1), Sync<HardEvent::MTE2_S>(), (void)local_.GetValue(1); break;
      case 41: (void)huge_.Get<int64_t>(); break;
      case 43: for (Buffer& buffer : many_) pipe_.InitBuffer(buffer, 32); break;
      case 42: Out(target_[0], other_.Get<int64_t>(), 1); break;
    }
  }

  __aicore__ inline void Synchronisation(uint32_t fault) {
    switch (fault) {
      case 50: In(local_, source_, 8), (void)local_.GetValue(0); break;
      case 51: local_.SetValue(0, 1), Out(target_, local_, 1); break;
      case 52: In(local_, source_, 8), Out(target_, local_, 8); break;
      case 53: Out(target_, Ready(), 8), local_.SetValue(0, 1); break;
      case 54: Out(target_, Ready(), 8), In(local_, source_, 8); break;
      case 55: In(local_, source_, 8), In(local_, source_, 8); break;
      case 56: local_.SetValue(0, 1), In(local_, source_, 8); break;
      case 57: WaitFlag<HardEvent::MTE2_S>(EVENT_ID0); break;
      case 58: Copy(), SetFlag<HardEvent::MTE3_S>(EVENT_ID0); break;
      case 59: SetFlag<HardEvent::MTE2_S>(EVENT_ID1), SetFlag<HardEvent::MTE2_S>(EVENT_ID1); break;
      case 60: SetFlag<HardEvent::MTE2_S>(8); break;
      case 61: In(local_, source_, 8), Sync<HardEvent::MTE2_MTE3>(), (void)local_.GetValue(0);
        break;
      case 62: In(local_, source_, 8), PipeBarrier<PIPE_MTE2>(), (void)local_.GetValue(0); break;
    }
  }

  __aicore__ inline void Queues(uint32_t fault) {
    LocalTensor<int64_t> tensor = queue_.AllocTensor<int64_t>();
    In(tensor, source_, 8);
    switch (fault) {
      case 70: Out(target_, tensor, 8); break;
      case 71: queue_.EnQue(tensor), Out(target_, tensor, 8); break;
      case 72: Through(tensor), Out(target_, tensor, 8); break;
      case 73: Through(tensor), queue_.FreeTensor(tensor); break;
      case 74: (void)queue_.DeQue<int64_t>(); break;
      case 75: queue_.EnQue(tensor), (void)queue_.DeQue<int64_t>(); break;
      case 76: (void)queue_.AllocTensor<int64_t>(), (void)queue_.AllocTensor<int64_t>(); break;
      case 77: queue_.EnQue(tensor), tensor = queue_.DeQue<int64_t>(), queue_.EnQue(tensor); break;
      case 78: Through(tensor), tensor = queue_.AllocTensor<int64_t>(); break;
      case 79: queue_.EnQue(tensor), tensor = queue_.AllocTensor<int64_t>(), queue_.EnQue(tensor);
        break;
      case 80: queue_.EnQue(local_); break;
    }
  }

 private:
  template <typename T>
  static __aicore__ inline void In(const LocalTensor<T>& local, const GlobalTensor<T>& global,
                                   uint32_t count) {
    DataCopyPad(local, global, DataCopyExtParams(1, count * 8, 0, 0, 0), {});
  }
  template <typename T>
  static __aicore__ inline void Out(const GlobalTensor<T>& global, const LocalTensor<T>& local,
                                    uint32_t count) {
    DataCopyPad(global, local, DataCopyExtParams(1, count * 8, 0, 0, 0));
  }
  // A whole tile that any pipe may use.
  __aicore__ inline LocalTensor<int64_t> Ready() {
    for (uint32_t i = 0; i < tiling_.size; i++) local_.SetValue(i, 1);
    PipeBarrier<PIPE_ALL>();
    return local_;
  }
  __aicore__ inline void Through(LocalTensor<int64_t>& tensor) {
    queue_.EnQue(tensor);
    tensor = queue_.DeQue<int64_t>();
    Out(target_, tensor, 8);
    queue_.FreeTensor(tensor);
  }

  ProbeTilingData tiling_;
  GM_ADDR sourceAddress_;
  GM_ADDR targetAddress_;
  TPipe pipe_;
  GlobalTensor<int64_t> source_, target_;
  Buffer buffer_, other_, huge_, many_[64];
  Queue queue_;
  LocalTensor<int64_t> local_;
};

extern "C" __global__ __aicore__ void probe(GM_ADDR source, GM_ADDR target, GM_ADDR workspace,
                                            GM_ADDR tiling) {
  GET_TILING_DATA_WITH_STRUCT(ProbeTilingData, tilingData, tiling);
  Probe op(tilingData, source, target);
  const uint32_t fault = tilingData.fault;
  if (fault == 0) op.Copy();
  if (fault > 0 && fault < 20) op.Global(fault);
  if (fault >= 20 && fault < 30) op.Cores(fault);
  if (fault >= 30 && fault < 50) op.Local(fault);
  if (fault >= 50 && fault < 70) op.Synchronisation(fault);
  if (fault >= 70) op.Queues(fault);
}
