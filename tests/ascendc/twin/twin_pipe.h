// SPDX-License-Identifier: Apache-2.0
// AscendC's buffers, queues, flags and barriers.
#pragma once

#include "twin_tensor.h"

namespace AscendC {

enum class TPosition : uint8_t { GM, VECIN, VECOUT, VECCALC };
using QuePosition = TPosition;
using TEventID = int8_t;

enum class HardEvent : uint8_t {
  MTE2_S, S_MTE2, MTE3_S, S_MTE3, MTE2_MTE3, MTE3_MTE2,
  MTE2_V, V_MTE2, MTE3_V, V_MTE3, V_S, S_V,
};

struct TwinEvent {
  twin::Pipe from, to;
};

constexpr TwinEvent PipesOf(HardEvent event) {
  constexpr TwinEvent pipes[] = {
      {twin::kMte2, twin::kScalar}, {twin::kScalar, twin::kMte2}, {twin::kMte3, twin::kScalar},
      {twin::kScalar, twin::kMte3}, {twin::kMte2, twin::kMte3},   {twin::kMte3, twin::kMte2},
      {twin::kMte2, twin::kVector}, {twin::kVector, twin::kMte2}, {twin::kMte3, twin::kVector},
      {twin::kVector, twin::kMte3}, {twin::kVector, twin::kScalar}, {twin::kScalar, twin::kVector},
  };
  return pipes[static_cast<int>(event)];
}

template <HardEvent event>
void SetFlag(int32_t id) {
  twin::core().SetFlag(PipesOf(event).from, PipesOf(event).to, id);
}

template <HardEvent event>
void WaitFlag(int32_t id) {
  twin::core().WaitFlag(PipesOf(event).from, PipesOf(event).to, id);
}

template <pipe_t pipe>
void PipeBarrier() {
  static_assert(pipe != PIPE_S, "the scalar unit has no barrier");
  twin::core().Barrier(pipe == PIPE_ALL    ? twin::kPipes
                       : pipe == PIPE_V    ? twin::kVector
                       : pipe == PIPE_MTE2 ? twin::kMte2
                                           : twin::kMte3);
}

template <TPosition position = TPosition::VECCALC>
class TBuf {
 public:
  template <typename T>
  LocalTensor<T> Get() {
    const twin::Buffer& buffer = Plain();
    return LocalTensor<T>(index_, buffer.begin, buffer.bytes);
  }

  template <typename T>
  LocalTensor<T> Get(uint32_t length) {
    const twin::Buffer& buffer = Plain();
    if (int64_t(length) * int64_t(sizeof(T)) > buffer.bytes) {
      twin::Fail("TBuf::Get: %u elements of a buffer of %lld bytes", length,
                 (long long)buffer.bytes);
    }
    return LocalTensor<T>(index_, buffer.begin, int64_t(length) * sizeof(T));
  }

 private:
  friend class TPipe;
  const twin::Buffer& Plain() const {
    if (index_ < 0) twin::Fail("TBuf::Get before InitBuffer");
    return twin::core().buffers[index_];
  }
  int index_ = -1;
};

// From the pipe that fills a tensor to the pipe that empties it.
constexpr TwinEvent QueuePipes(TPosition source, TPosition destination) {
  if (source == TPosition::GM) return {twin::kMte2, twin::kVector};
  if (destination == TPosition::GM) return {twin::kVector, twin::kMte3};
  return {twin::kMte2, twin::kMte3};
}

template <TPosition source, TPosition destination, int32_t depth>
class TQueBind {
 public:
  template <typename T>
  LocalTensor<T> AllocTensor() {
    for (int index = first_; index < first_ + count_; index++) {
      twin::Buffer& buffer = twin::core().buffers[index];
      if (buffer.state != twin::State::kFree) continue;
      Take(buffer, twin::State::kAllocated);
      twin::core().clock[kPipes.from].Merge(buffer.freed);
      return LocalTensor<T>(index, buffer.begin, buffer.bytes);
    }
    twin::Fail("AllocTensor: all %d tensors of the queue are in use", count_);
  }

  template <typename T>
  bool EnQue(const LocalTensor<T>& tensor) {
    twin::Buffer& buffer = Own(tensor, "EnQue");
    if (buffer.state != twin::State::kAllocated) twin::Fail("EnQue: not a tensor of AllocTensor");
    if (static_cast<int>(waiting_.size()) >= depth) twin::Fail("EnQue: more than depth %d", depth);
    Take(buffer, twin::State::kQueued);
    buffer.queued = twin::core().Promise(kPipes.from);
    waiting_.push_back(tensor.buffer());
    return true;
  }

  template <typename T>
  LocalTensor<T> DeQue() {
    if (waiting_.empty()) twin::Fail("DeQue: the queue is empty: the core would hang");
    const int index = waiting_.front();
    waiting_.erase(waiting_.begin());
    twin::Buffer& buffer = twin::core().buffers[index];
    Take(buffer, twin::State::kDequeued);
    twin::core().clock[kPipes.to].Merge(buffer.queued);
    return LocalTensor<T>(index, buffer.begin, buffer.bytes);
  }

  template <typename T>
  void FreeTensor(LocalTensor<T>& tensor) {
    twin::Buffer& buffer = Own(tensor, "FreeTensor");
    Take(buffer, twin::State::kFree);
    buffer.freed = twin::core().Promise(kPipes.to);
  }

 private:
  friend class TPipe;
  static constexpr TwinEvent kPipes = QueuePipes(source, destination);

  static void Take(twin::Buffer& buffer, twin::State state) {
    buffer.state = state;
    buffer.generation++;
  }

  template <typename T>
  twin::Buffer& Own(const LocalTensor<T>& tensor, const char* what) {
    tensor.Check(what);
    if (tensor.buffer() < first_ || tensor.buffer() >= first_ + count_) {
      twin::Fail("%s: the tensor is not this queue's", what);
    }
    return twin::core().buffers[tensor.buffer()];
  }

  int first_ = 0, count_ = 0;
  std::vector<int> waiting_;
};

template <TPosition position, int32_t depth>
class TQue
    : public TQueBind<position == TPosition::VECIN ? TPosition::GM : position,
                      position == TPosition::VECIN ? position : TPosition::GM, depth> {};

class TPipe {
 public:
  TPipe() {
    if (twin::core().pipe != nullptr) twin::Fail("a second TPipe in one kernel");
    twin::core().pipe = this;
  }
  TPipe(const TPipe&) = delete;
  ~TPipe() { twin::core().pipe = nullptr; }

  template <TPosition position>
  bool InitBuffer(TBuf<position>& buffer, uint32_t bytes) {
    if (buffer.index_ >= 0) twin::Fail("InitBuffer: a TBuf twice");
    buffer.index_ = twin::core().AddBuffer(bytes, twin::State::kPlain);
    return true;
  }

  template <typename Queue>
  bool InitBuffer(Queue& queue, uint8_t count, uint32_t bytes) {
    if (queue.count_ != 0) twin::Fail("InitBuffer: a queue twice");
    queue.first_ = static_cast<int>(twin::core().buffers.size());
    queue.count_ = count;
    for (int i = 0; i < count; i++) twin::core().AddBuffer(bytes, twin::State::kFree);
    return true;
  }

  TEventID FetchEventID(HardEvent event) {
    return static_cast<TEventID>(
        twin::core().FetchEventId(PipesOf(event).from, PipesOf(event).to));
  }
};

inline TPipe* GetTPipePtr() {
  if (twin::core().pipe == nullptr) twin::Fail("GetTPipePtr: no TPipe is alive");
  return static_cast<TPipe*>(twin::core().pipe);
}

}  // namespace AscendC
