// SPDX-License-Identifier: Apache-2.0
// tree_build: the best M candidates of each request, closed under ancestors.
// See ../../reference.py.
//
// One request at a time per core, by the scalar unit. Scores are handled as the int32 keys that
// sort like them, so that no step depends on how the device compares NaN or infinities.
#include "kernel_operator.h"
#include "tree_build_tiling_data.h"

namespace tree_build_op {

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

constexpr int32_t kMagnitude = 0x7fffffff;
constexpr int32_t kInfinity = 0x7f800000;      // bits of +inf, and its key
constexpr int32_t kNone = -kInfinity - 1;      // key of -inf
constexpr int32_t kNoneBits = -0x00800000;     // bits of -inf

// Negative floats sort backwards by their bits; the map is its own inverse.
__aicore__ inline int32_t Flip(int32_t bits) { return bits < 0 ? bits ^ kMagnitude : bits; }

// Key of a score: NaN counts as -inf, and both zeros are one.
__aicore__ inline int32_t KeyOf(int32_t bits) {
  const int32_t magnitude = bits & kMagnitude;
  if (magnitude > kInfinity) return kNone;
  return magnitude == 0 ? 0 : Flip(bits);
}

class TreeBuild {
 public:
  __aicore__ inline TreeBuild(const TreeBuildTilingData& tiling) : tiling_(tiling) {}

  __aicore__ inline void InitInputs(GM_ADDR rootTokens, GM_ADDR tokens, GM_ADDR scores,
                                    GM_ADDR parents) {
    const uint64_t candidates = static_cast<uint64_t>(tiling_.batch) * tiling_.capacity;
    Bind(rootTokens_, rootTokens, tiling_.batch);
    Bind(tokens_, tokens, candidates);
    Bind(scores_, scores, candidates);
    Bind(parents_, parents, candidates);
    Reserve(rootLocal_, rootBuffer_, 1);
    Reserve(tokenLocal_, tokenBuffer_, tiling_.capacity);
    Reserve(parentLocal_, parentBuffer_, tiling_.capacity);
    Reserve(keyLocal_, keyBuffer_, tiling_.capacity);
    Reserve(rowOf_, rowOfBuffer_, tiling_.capacity + 1);
    Reserve(heap_, heapBuffer_, tiling_.rows - 1);
  }

  __aicore__ inline void InitOutputs(GM_ADDR treeTokens, GM_ADDR parent, GM_ADDR depth,
                                     GM_ADDR valid, GM_ADDR visible, GM_ADDR score, GM_ADDR mask,
                                     GM_ADDR firstChild, GM_ADDR nextSibling) {
    const uint64_t nodes = static_cast<uint64_t>(tiling_.batch) * tiling_.rows;
    Bind(treeTokens_, treeTokens, nodes);
    Bind(parent_, parent, nodes);
    Bind(depth_, depth, nodes);
    Bind(valid_, valid, nodes);
    Bind(visible_, visible, nodes * tiling_.rows);
    Bind(score_, score, nodes);
    Bind(mask_, mask, nodes * tiling_.maskWords);
    Bind(firstChild_, firstChild, nodes);
    Bind(nextSibling_, nextSibling, nodes);
    Reserve(outTokens_, outTokenBuffer_, tiling_.rows);
    Reserve(outParent_, outParentBuffer_, tiling_.rows);
    Reserve(outDepth_, outDepthBuffer_, tiling_.rows);
    Reserve(outValid_, outValidBuffer_, tiling_.rows);
    Reserve(outVisible_, outVisibleBuffer_, tiling_.rows * tiling_.visiblePitch);
    Reserve(outScore_, outScoreBuffer_, tiling_.rows);
    Reserve(outMask_, outMaskBuffer_, tiling_.rows * tiling_.maskWords);
    Reserve(outFirstChild_, outFirstBuffer_, tiling_.rows);
    Reserve(outNextSibling_, outNextBuffer_, tiling_.rows);
    visibleWords_ = outVisible_.ReinterpretCast<int64_t>();
  }

  __aicore__ inline void Process() {
    const uint32_t first = static_cast<uint32_t>(GetBlockIdx()) * tiling_.requestsPerCore;
    const uint32_t end = first + tiling_.requestsPerCore;
    for (uint32_t b = first; b < end && b < tiling_.batch; b++) {
      LoadRequest(b);
      Choose();
      const uint32_t rows = Number();
      for (uint32_t row = rows; row < tiling_.rows; row++) Pad(row);
      Link(rows);
      StoreRequest(b);
    }
  }

 private:
  template <typename T>
  static __aicore__ inline void Bind(GlobalTensor<T>& tensor, GM_ADDR address, uint64_t size) {
    tensor.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(address), size);
  }

  template <typename T>
  __aicore__ inline void Reserve(LocalTensor<T>& local, TBuf<TPosition::VECCALC>& buffer,
                                 uint32_t size) {
    pipe_.InitBuffer(buffer, size * static_cast<uint32_t>(sizeof(T)));
    local = buffer.Get<T>();
  }

  __aicore__ inline void LoadRequest(uint32_t b) {
    const uint64_t candidate = static_cast<uint64_t>(b) * tiling_.capacity;
    Load(rootLocal_, rootTokens_[b], 1);
    Load(tokenLocal_, tokens_[candidate], tiling_.capacity);
    Load(keyLocal_, scores_[candidate], tiling_.capacity);
    Load(parentLocal_, parents_[candidate], tiling_.capacity);
    Sync<HardEvent::MTE2_S>();
  }

  // Lower each key to its parent's and keep the best candidates in the heap.
  __aicore__ inline void Choose() {
    kept_ = 0;
    rowOf_.SetValue(0, 0);
    for (uint32_t c = 0; c < tiling_.capacity; c++) {
      const int64_t parent = parentLocal_.GetValue(c);
      int32_t key = KeyOf(keyLocal_.GetValue(c));
      // No candidate but an earlier one can be a parent: anything else is never an index.
      if (parent < 0 || parent > static_cast<int64_t>(c)) {
        key = kNone;
      } else if (parent > 0) {
        const int32_t bound = keyLocal_.GetValue(static_cast<uint32_t>(parent - 1));
        key = key < bound ? key : bound;
      }
      keyLocal_.SetValue(c, key);
      rowOf_.SetValue(c + 1, 0);
      if (key > kNone) Offer(c);
    }
    for (uint32_t i = 0; i < kept_; i++) {
      rowOf_.SetValue(static_cast<uint32_t>(heap_.GetValue(i)) + 1, 1);
    }
  }

  // Whether candidate a goes before b leaves: a lower score, or the higher index of equal ones.
  __aicore__ inline bool Worse(int32_t a, int32_t b) {
    const int32_t left = keyLocal_.GetValue(static_cast<uint32_t>(a));
    const int32_t right = keyLocal_.GetValue(static_cast<uint32_t>(b));
    return left < right || (left == right && a > b);
  }

  // The heap's first candidate is the worst of those kept.
  __aicore__ inline void Offer(uint32_t c) {
    const int32_t candidate = static_cast<int32_t>(c);
    const uint32_t nodes = tiling_.rows - 1;
    if (kept_ < nodes) {
      uint32_t i = kept_++;
      while (i > 0 && Worse(candidate, heap_.GetValue((i - 1) / 2))) {
        heap_.SetValue(i, heap_.GetValue((i - 1) / 2));
        i = (i - 1) / 2;
      }
      heap_.SetValue(i, candidate);
      return;
    }
    if (Worse(candidate, heap_.GetValue(0))) return;
    uint32_t i = 0;
    for (uint32_t child = 1; child < nodes; child = 2 * i + 1) {
      if (child + 1 < nodes && Worse(heap_.GetValue(child + 1), heap_.GetValue(child))) child++;
      if (Worse(candidate, heap_.GetValue(child))) break;
      heap_.SetValue(i, heap_.GetValue(child));
      i = child;
    }
    heap_.SetValue(i, candidate);
  }

  // Give the root and the kept candidates their rows, in candidate order; the count of rows.
  __aicore__ inline uint32_t Number() {
    SetRow(0, rootLocal_.GetValue(0), 0, 0, 1, 0);
    Clear(0);
    See(0);
    uint32_t row = 1;
    for (uint32_t c = 0; c < tiling_.capacity; c++) {
      if (rowOf_.GetValue(c + 1) == 0) continue;
      rowOf_.SetValue(c + 1, static_cast<int32_t>(row));
      const uint32_t above = static_cast<uint32_t>(
          rowOf_.GetValue(static_cast<uint32_t>(parentLocal_.GetValue(c))));
      SetRow(row, tokenLocal_.GetValue(c), above, outDepth_.GetValue(above) + 1, 1,
             Flip(keyLocal_.GetValue(c)));
      Inherit(row, above);
      See(row);
      row++;
    }
    return row;
  }

  // A padding row has nothing of its own and sees the root alone.
  __aicore__ inline void Pad(uint32_t row) {
    SetRow(row, 0, 0, 0, 0, kNoneBits);
    Clear(row);
    outVisible_.SetValue(row * tiling_.visiblePitch, 1);
    outMask_.SetValue(row * tiling_.maskWords, 1);
  }

  __aicore__ inline void SetRow(uint32_t row, int64_t token, uint32_t parent, int64_t depth,
                                uint8_t valid, int32_t score) {
    outTokens_.SetValue(row, token);
    outParent_.SetValue(row, static_cast<int64_t>(parent));
    outDepth_.SetValue(row, depth);
    outValid_.SetValue(row, valid);
    outScore_.SetValue(row, score);
    outFirstChild_.SetValue(row, 0);
    outNextSibling_.SetValue(row, 0);
  }

  __aicore__ inline void Clear(uint32_t row) {
    const uint32_t words = tiling_.visiblePitch / 8;
    for (uint32_t i = 0; i < words; i++) visibleWords_.SetValue(row * words + i, 0);
    for (uint32_t i = 0; i < tiling_.maskWords; i++) {
      outMask_.SetValue(row * tiling_.maskWords + i, 0);
    }
  }

  // A node sees what its parent sees.
  __aicore__ inline void Inherit(uint32_t row, uint32_t parent) {
    const uint32_t words = tiling_.visiblePitch / 8;
    for (uint32_t i = 0; i < words; i++) {
      visibleWords_.SetValue(row * words + i, visibleWords_.GetValue(parent * words + i));
    }
    for (uint32_t i = 0; i < tiling_.maskWords; i++) {
      outMask_.SetValue(row * tiling_.maskWords + i,
                        outMask_.GetValue(parent * tiling_.maskWords + i));
    }
  }

  // And itself.
  __aicore__ inline void See(uint32_t row) {
    outVisible_.SetValue(row * tiling_.visiblePitch + row, 1);
    const uint32_t word = row * tiling_.maskWords + row / 32;
    outMask_.SetValue(word, outMask_.GetValue(word) | (1u << (row % 32)));
  }

  // Backwards, so that each node finds its next sibling as its parent's first child so far.
  __aicore__ inline void Link(uint32_t rows) {
    for (uint32_t row = rows - 1; row > 0; row--) {
      const uint32_t parent = static_cast<uint32_t>(outParent_.GetValue(row));
      outNextSibling_.SetValue(row, outFirstChild_.GetValue(parent));
      outFirstChild_.SetValue(parent, static_cast<int64_t>(row));
    }
  }

  __aicore__ inline void StoreRequest(uint32_t b) {
    const uint32_t rows = tiling_.rows;
    const uint64_t node = static_cast<uint64_t>(b) * rows;
    Sync<HardEvent::S_MTE3>();
    Store(treeTokens_[node], outTokens_, rows);
    Store(parent_[node], outParent_, rows);
    Store(depth_[node], outDepth_, rows);
    Store(valid_[node], outValid_, rows);
    Store(score_[node], outScore_, rows);
    Store(mask_[node * tiling_.maskWords], outMask_, rows * tiling_.maskWords);
    Store(firstChild_[node], outFirstChild_, rows);
    Store(nextSibling_[node], outNextSibling_, rows);
    // R blocks of R bytes: in the unified buffer each starts on a 32-byte boundary.
    DataCopyPad(visible_[node * rows], outVisible_,
                DataCopyExtParams(static_cast<uint16_t>(rows), rows, 0, 0, 0));
    // The next request reuses these buffers.
    Sync<HardEvent::S_MTE2>();
    Sync<HardEvent::MTE3_S>();
  }

  TreeBuildTilingData tiling_;
  TPipe pipe_;
  GlobalTensor<int64_t> rootTokens_, tokens_, parents_;
  GlobalTensor<int32_t> scores_, score_;  // float32 bits
  GlobalTensor<int64_t> treeTokens_, parent_, depth_, firstChild_, nextSibling_;
  GlobalTensor<uint8_t> valid_, visible_;
  GlobalTensor<uint32_t> mask_;
  TBuf<TPosition::VECCALC> rootBuffer_, tokenBuffer_, parentBuffer_, keyBuffer_, rowOfBuffer_;
  TBuf<TPosition::VECCALC> heapBuffer_, outTokenBuffer_, outParentBuffer_, outDepthBuffer_;
  TBuf<TPosition::VECCALC> outValidBuffer_, outVisibleBuffer_, outScoreBuffer_, outMaskBuffer_;
  TBuf<TPosition::VECCALC> outFirstBuffer_, outNextBuffer_;
  LocalTensor<int64_t> rootLocal_, tokenLocal_, parentLocal_;
  LocalTensor<int32_t> keyLocal_, rowOf_, heap_;  // rowOf_[c + 1]: row of candidate c, 0 if none
  LocalTensor<int64_t> outTokens_, outParent_, outDepth_, outFirstChild_, outNextSibling_;
  LocalTensor<int64_t> visibleWords_;  // outVisible_, eight bytes at a time
  LocalTensor<uint8_t> outValid_, outVisible_;
  LocalTensor<int32_t> outScore_;
  LocalTensor<uint32_t> outMask_;
  uint32_t kept_ = 0;
};

}  // namespace tree_build_op

extern "C" __global__ __aicore__ void tree_build(
    GM_ADDR rootTokens, GM_ADDR tokens, GM_ADDR scores, GM_ADDR parents, GM_ADDR treeTokens,
    GM_ADDR parent, GM_ADDR depth, GM_ADDR valid, GM_ADDR visible, GM_ADDR score, GM_ADDR mask,
    GM_ADDR firstChild, GM_ADDR nextSibling, GM_ADDR workspace, GM_ADDR tiling) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  REGISTER_TILING_DEFAULT(TreeBuildTilingData);
  GET_TILING_DATA_WITH_STRUCT(TreeBuildTilingData, tilingData, tiling);
  tree_build_op::TreeBuild op(tilingData);
  op.InitInputs(rootTokens, tokens, scores, parents);
  op.InitOutputs(treeTokens, parent, depth, valid, visible, score, mask, firstChild, nextSibling);
  op.Process();
}
