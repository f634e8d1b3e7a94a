// SPDX-License-Identifier: Apache-2.0
// What one simulated vector core knows: its unified buffer byte by byte, and what each of its
// pipes may rely on. Pipes run asynchronously on the device; here an order is only believed where
// a flag, a queue or a barrier makes it.
#pragma once

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

namespace twin {

constexpr int64_t kBlockBytes = 32;
constexpr int64_t kUnifiedBytes = 192 * 1024;
constexpr uint8_t kPoison = 0xA5;
constexpr int kEventIds = 8;
constexpr int kMaxBuffers = 64;  // of a TPipe

struct Violation {
  char text[640];
};

[[noreturn]] __attribute__((format(printf, 1, 2))) inline void Fail(const char* format, ...) {
  Violation violation;
  va_list values;
  va_start(values, format);
  vsnprintf(violation.text, sizeof(violation.text), format, values);
  va_end(values);
  throw violation;
}

inline int64_t RoundUp(int64_t bytes) {
  return (bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
}

enum Pipe : uint8_t { kScalar, kVector, kMte2, kMte3, kPipes };

inline const char* Name(int pipe) {
  static const char* const names[] = {"scalar", "vector", "MTE2", "MTE3"};
  return names[pipe];
}

// done[q]: the last operation of pipe q that is known to be finished.
struct Clock {
  uint32_t done[kPipes] = {};
  void Merge(const Clock& other) {
    for (int q = 0; q < kPipes; q++) {
      if (other.done[q] > done[q]) done[q] = other.done[q];
    }
  }
};

// One byte of the unified buffer. Operations count from 1; 0 is "never".
struct Cell {
  uint32_t write_operation;
  uint32_t read_operation[kPipes];
  uint8_t writer;
  uint8_t defined;
};

struct Flag {
  bool set = false;
  Clock clock;
};

enum class State : uint8_t { kPlain, kFree, kAllocated, kQueued, kDequeued };

// A buffer of TPipe::InitBuffer. `generation` grows at every change of hands, so that a tensor
// from before it is known to be stale.
struct Buffer {
  int64_t begin = 0, bytes = 0;
  State state = State::kPlain;
  uint32_t generation = 0;
  Clock queued, freed;
};

struct Core {
  int index = 0;
  int64_t allocated = 0;
  uint8_t unified[kUnifiedBytes];
  Cell cells[kUnifiedBytes];
  uint32_t issued[kPipes];
  Clock clock[kPipes];
  Flag flags[kPipes][kPipes][kEventIds];
  std::vector<Buffer> buffers;
  void* pipe = nullptr;  // the kernel's AscendC::TPipe

  void Start(int core_index) {
    index = core_index;
    allocated = 0;
    pipe = nullptr;
    buffers.clear();
    memset(issued, 0, sizeof(issued));
    for (int p = 0; p < kPipes; p++) {
      clock[p] = Clock();
      for (auto& pair : flags[p]) {
        for (Flag& flag : pair) flag = Flag();
      }
    }
  }

  int AddBuffer(int64_t bytes, State state) {
    if (bytes <= 0) Fail("InitBuffer: %lld bytes", static_cast<long long>(bytes));
    if (buffers.size() == kMaxBuffers) Fail("InitBuffer: more than %d buffers", kMaxBuffers);
    const int64_t size = RoundUp(bytes);
    if (allocated + size > kUnifiedBytes) {
      Fail("InitBuffer: %lld bytes of unified buffer, %lld of %lld are taken",
           static_cast<long long>(size), static_cast<long long>(allocated),
           static_cast<long long>(kUnifiedBytes));
    }
    Buffer buffer;
    buffer.begin = allocated;
    buffer.bytes = size;
    buffer.state = state;
    memset(unified + allocated, kPoison, size);
    memset(static_cast<void*>(cells + allocated), 0, size * sizeof(Cell));
    allocated += size;
    buffers.push_back(buffer);
    return static_cast<int>(buffers.size()) - 1;
  }

  uint32_t Begin(Pipe pipe) { return ++issued[pipe]; }

  // Only the scalar unit finishes each operation before the next one.
  bool Ordered(Pipe later, int earlier, uint32_t operation) const {
    if (later == kScalar && earlier == kScalar) return true;
    return operation <= clock[later].done[earlier];
  }

  void Read(Pipe pipe, uint32_t operation, int64_t begin, int64_t bytes, const char* what) {
    for (int64_t i = begin; i < begin + bytes; i++) {
      Cell& cell = cells[i];
      if (!cell.defined) {
        Fail("%s reads local byte %lld that was never written", what, static_cast<long long>(i));
      }
      if (!Ordered(pipe, cell.writer, cell.write_operation)) {
        Fail("%s: %s reads local byte %lld that %s writes, without synchronisation", what,
             Name(pipe), static_cast<long long>(i), Name(cell.writer));
      }
      cell.read_operation[pipe] = operation;
    }
  }

  // `defined` false: bytes that the device overwrites with something unspecified.
  void Write(Pipe pipe, uint32_t operation, int64_t begin, int64_t bytes, bool defined,
             const char* what) {
    for (int64_t i = begin; i < begin + bytes; i++) {
      Cell& cell = cells[i];
      if (!Ordered(pipe, cell.writer, cell.write_operation)) {
        Fail("%s: %s writes local byte %lld that %s writes, without synchronisation", what,
             Name(pipe), static_cast<long long>(i), Name(cell.writer));
      }
      for (int q = 0; q < kPipes; q++) {
        if (!Ordered(pipe, q, cell.read_operation[q])) {
          Fail("%s: %s writes local byte %lld that %s reads, without synchronisation", what,
               Name(pipe), static_cast<long long>(i), Name(q));
        }
      }
      cell.writer = pipe;
      cell.write_operation = operation;
      cell.defined = defined;
    }
  }

  // What a flag raised by `pipe` now promises to who waits for it.
  Clock Promise(Pipe pipe) const {
    Clock promise = clock[pipe];
    promise.done[pipe] = issued[pipe];
    return promise;
  }

  Flag& FlagAt(Pipe from, Pipe to, int64_t id) {
    if (id < 0 || id >= kEventIds) {
      Fail("event id %lld is not one of the %d that a pair of pipes has",
           static_cast<long long>(id), kEventIds);
    }
    return flags[from][to][id];
  }

  void SetFlag(Pipe from, Pipe to, int64_t id) {
    Flag& flag = FlagAt(from, to, id);
    if (flag.set) Fail("SetFlag: %s to %s, id %d is set already", Name(from), Name(to), int(id));
    flag.set = true;
    flag.clock = Promise(from);
  }

  void WaitFlag(Pipe from, Pipe to, int64_t id) {
    Flag& flag = FlagAt(from, to, id);
    if (!flag.set) {
      Fail("WaitFlag: %s to %s, id %d was not set: the core would hang", Name(from), Name(to),
           int(id));
    }
    flag.set = false;
    clock[to].Merge(flag.clock);
  }

  int FetchEventId(Pipe from, Pipe to) const {
    for (int id = 0; id < kEventIds; id++) {
      if (!flags[from][to][id].set) return id;
    }
    Fail("FetchEventID: all ids from %s to %s are in use", Name(from), Name(to));
  }

  void Barrier(int pipe) {
    for (int p = 0; p < kPipes; p++) {
      if (pipe != kPipes && pipe != p) continue;
      clock[p].done[p] = issued[p];
      for (int q = 0; pipe == kPipes && q < kPipes; q++) clock[p].done[q] = issued[q];
    }
  }

  // After the kernel returned: what it should not leave behind.
  void Finish() const {
    for (int from = 0; from < kPipes; from++) {
      for (int to = 0; to < kPipes; to++) {
        for (int id = 0; id < kEventIds; id++) {
          if (flags[from][to][id].set) {
            Fail("the kernel ends with the flag %s to %s, id %d set", Name(from), Name(to), id);
          }
        }
      }
    }
    for (const Buffer& buffer : buffers) {
      if (buffer.state != State::kPlain && buffer.state != State::kFree) {
        Fail("the kernel ends with a queue tensor that was not freed");
      }
    }
  }
};

inline Core& core() {
  static Core instance;
  return instance;
}

}  // namespace twin
