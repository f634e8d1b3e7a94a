// SPDX-License-Identifier: Apache-2.0
// tree_accept: follow the target's draws from the root. See ../../reference.py.
//
// Cores own contiguous groups of four requests. A group is loaded, walked by the scalar unit and
// stored; each transfer has exactly the bytes of its requests.
#include "kernel_operator.h"
#include "tree_accept_tiling_data.h"

namespace tree_accept_op {

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

class TreeAccept {
 public:
  __aicore__ inline TreeAccept(const TreeAcceptTilingData& tiling) : tiling_(tiling) {}

  __aicore__ inline void Init(GM_ADDR tokens, GM_ADDR parent, GM_ADDR valid, GM_ADDR draws,
                              GM_ADDR rows, GM_ADDR length, GM_ADDR output) {
    const uint64_t nodes = static_cast<uint64_t>(tiling_.batch) * tiling_.rows;
    const uint64_t steps = static_cast<uint64_t>(tiling_.batch) * (tiling_.depth + 1);
    tokens_.SetGlobalBuffer(reinterpret_cast<__gm__ int64_t*>(tokens), nodes);
    parent_.SetGlobalBuffer(reinterpret_cast<__gm__ int64_t*>(parent), nodes);
    valid_.SetGlobalBuffer(reinterpret_cast<__gm__ uint8_t*>(valid), nodes);
    draws_.SetGlobalBuffer(reinterpret_cast<__gm__ int64_t*>(draws), nodes);
    rows_.SetGlobalBuffer(reinterpret_cast<__gm__ int64_t*>(rows), steps);
    length_.SetGlobalBuffer(reinterpret_cast<__gm__ int64_t*>(length), tiling_.batch);
    output_.SetGlobalBuffer(reinterpret_cast<__gm__ int64_t*>(output), steps);

    const uint32_t nodeBytes = kGroup * tiling_.rows * sizeof(int64_t);
    const uint32_t stepBytes = kGroup * (tiling_.depth + 1) * sizeof(int64_t);
    pipe_.InitBuffer(tokenBuffer_, nodeBytes);
    pipe_.InitBuffer(parentBuffer_, nodeBytes);
    pipe_.InitBuffer(validBuffer_, kGroup * tiling_.rows);
    pipe_.InitBuffer(drawBuffer_, nodeBytes);
    pipe_.InitBuffer(rowBuffer_, stepBytes);
    pipe_.InitBuffer(lengthBuffer_, kGroup * sizeof(int64_t));
    pipe_.InitBuffer(outputBuffer_, stepBytes);
  }

  __aicore__ inline void Process() {
    const uint32_t requestsPerCore = tiling_.groupsPerCore * kGroup;
    const uint32_t first = static_cast<uint32_t>(GetBlockIdx()) * requestsPerCore;
    const uint32_t end = Least(first + requestsPerCore, tiling_.batch);
    for (uint32_t b = first; b < end; b += kGroup) Group(b, Least(kGroup, end - b));
  }

 private:
  static __aicore__ inline uint32_t Least(uint32_t a, uint32_t b) { return a < b ? a : b; }

  __aicore__ inline void Group(uint32_t b, uint32_t requests) {
    const uint32_t nodes = requests * tiling_.rows, steps = requests * (tiling_.depth + 1);
    const uint64_t node = static_cast<uint64_t>(b) * tiling_.rows;
    const uint64_t step = static_cast<uint64_t>(b) * (tiling_.depth + 1);
    tokenLocal_ = tokenBuffer_.Get<int64_t>();
    parentLocal_ = parentBuffer_.Get<int64_t>();
    validLocal_ = validBuffer_.Get<uint8_t>();
    drawLocal_ = drawBuffer_.Get<int64_t>();
    rowLocal_ = rowBuffer_.Get<int64_t>();
    lengthLocal_ = lengthBuffer_.Get<int64_t>();
    outputLocal_ = outputBuffer_.Get<int64_t>();

    Load(tokenLocal_, tokens_[node], nodes);
    Load(parentLocal_, parent_[node], nodes);
    Load(validLocal_, valid_[node], nodes);
    Load(drawLocal_, draws_[node], nodes);
    Sync<HardEvent::MTE2_S>();
    for (uint32_t r = 0; r < requests; r++) Walk(r);
    Sync<HardEvent::S_MTE3>();
    Store(rows_[step], rowLocal_, steps);
    Store(length_[b], lengthLocal_, requests);
    Store(output_[step], outputLocal_, steps);
    // The next group's loads and walks reuse these buffers.
    Sync<HardEvent::S_MTE2>();
    Sync<HardEvent::MTE3_S>();
  }

  __aicore__ inline void Walk(uint32_t r) {
    const uint32_t node = r * tiling_.rows, step = r * (tiling_.depth + 1);
    uint32_t row = 0, length = 0;
    int64_t draw = drawLocal_.GetValue(node);
    rowLocal_.SetValue(step, 0);
    outputLocal_.SetValue(step, draw);
    while (length < tiling_.depth) {
      row = ChildWith(node, row, draw);
      if (row == 0) break;
      length++;
      draw = drawLocal_.GetValue(node + row);
      rowLocal_.SetValue(step + length, static_cast<int64_t>(row));
      outputLocal_.SetValue(step + length, draw);
    }
    lengthLocal_.SetValue(r, static_cast<int64_t>(length));
    for (uint32_t i = length + 1; i <= tiling_.depth; i++) {
      rowLocal_.SetValue(step + i, 0);
      outputLocal_.SetValue(step + i, -1);
    }
  }

  // The lowest valid child of `row` that carries `token`, 0 for none. Children come after their
  // parent, so all of a request's calls together look at each row once.
  __aicore__ inline uint32_t ChildWith(uint32_t node, uint32_t row, int64_t token) {
    for (uint32_t k = row + 1; k < tiling_.rows; k++) {
      if (validLocal_.GetValue(node + k) == 0) continue;
      if (parentLocal_.GetValue(node + k) != static_cast<int64_t>(row)) continue;
      if (tokenLocal_.GetValue(node + k) == token) return k;
    }
    return 0;
  }

  TreeAcceptTilingData tiling_;
  TPipe pipe_;
  GlobalTensor<int64_t> tokens_, parent_, draws_, rows_, length_, output_;
  GlobalTensor<uint8_t> valid_;
  TBuf<TPosition::VECCALC> tokenBuffer_, parentBuffer_, validBuffer_, drawBuffer_;
  TBuf<TPosition::VECCALC> rowBuffer_, lengthBuffer_, outputBuffer_;
  LocalTensor<int64_t> tokenLocal_, parentLocal_, drawLocal_, rowLocal_, lengthLocal_, outputLocal_;
  LocalTensor<uint8_t> validLocal_;
};

}  // namespace tree_accept_op

extern "C" __global__ __aicore__ void tree_accept(GM_ADDR tokens, GM_ADDR parent, GM_ADDR valid,
                                                  GM_ADDR draws, GM_ADDR rows, GM_ADDR length,
                                                  GM_ADDR output, GM_ADDR workspace,
                                                  GM_ADDR tiling) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  REGISTER_TILING_DEFAULT(TreeAcceptTilingData);
  GET_TILING_DATA_WITH_STRUCT(TreeAcceptTilingData, tilingData, tiling);
  tree_accept_op::TreeAccept op(tilingData);
  op.Init(tokens, parent, valid, draws, rows, length, output);
  op.Process();
}
