// SPDX-License-Identifier: Apache-2.0
// Attention of some query rows over some keys of one KV head: tile by tile with a running
// maximum and sum per row (online softmax, Milakov & Gimelshein 2018; tiling as in
// FlashAttention, Dao et al. 2022).
#pragma once

#include <algorithm>
#include <cstdlib>
#include <new>
#include <type_traits>

#include "amx_tiles.h"
#include "call.h"
#include "gemm.h"
#include "key_tile.h"

constexpr float kHiddenScore = -3e38f;
// Above every hidden score, so that a row which sees nothing sums to 0 instead of to its tile.
constexpr float kFirstMax = -1e30f;

constexpr int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

// Grow-only 64-byte aligned memory.
class Scratch {
 public:
  ~Scratch() { std::free(data_); }
  char* bytes(int64_t size) {
    if (size > size_) {
      std::free(data_);
      size_ = round_up(size + size / 2, 4096);
      data_ = static_cast<char*>(std::aligned_alloc(64, size_));
      if (!data_) throw std::bad_alloc();
    }
    return data_;
  }

 private:
  char* data_ = nullptr;
  int64_t size_ = 0;
};

// Query rows [first_row, first_row + rows) of request t, the query heads of one KV head, against
// the paged keys [first_key, last_key) and, if `dense`, the dense keys as well.
struct Item {
  int64_t t, kv_head, first_row, rows;
  int64_t first_key, last_key;
  bool dense;
  float* partial;  // where a part of a split row goes (partial_floats()), else null: to the output
};

// The running state of rows, M = rows * heads per KV head, row-major over (row, head).
struct State {
  float* sum;  // [M, kLanes], one sum per lane
  float* max;  // [M]
  float* acc;  // [M, v_row]
};

inline int64_t state_floats(int64_t m, int64_t v_row) {
  return round_up(m, kPanelRows) * (kLanes + 1 + v_row) + kLanes;
}

inline State state_at(float* base, int64_t m, int64_t v_row) {
  int64_t padded = round_up(m, kPanelRows);
  return {base, base + padded * (kLanes + v_row), base + padded * kLanes};
}

// Dot products of m rows, times `scale`, are scores; they become probabilities relative to the
// running maximum, of type P and in place; what came before is rescaled.
// `mask` (null: all seen) holds -1 where the row's query sees the key, 0 where not.
template <class P>
void softmax_tile(float* scores, float scale, int64_t m, int64_t heads, int64_t columns,
                  const int32_t* mask, int64_t mask_row, State state, int64_t v_row) {
  for (int64_t r = 0; r < m; r++) {
    float* row = scores + r * kTile;
    VecF top = splat(state.max[r]);
    if (mask) {
      const int32_t* seen = mask + r / heads * mask_row;
      for (int64_t c = 0; c < columns; c += kLanes) {
        VecF s = load_bits<VecI>(seen + c) ? load(row + c) : splat(kHiddenScore);
        store(row + c, s);
        top = at_least(top, s * scale);
      }
    } else {
      for (int64_t c = 0; c < columns; c += kLanes) top = at_least(top, load(row + c) * scale);
    }
    float new_max = max_lane(top);
    VecF sum = load(state.sum + r * kLanes);
    if (new_max > state.max[r]) {
      VecF factor = exp2_nonpositive(splat(state.max[r] - new_max));
      sum *= factor;
      for (int64_t d = 0; d < v_row; d += kLanes) {
        float* acc = state.acc + r * v_row + d;
        store(acc, load(acc) * factor);
      }
      state.max[r] = new_max;
    }
    P* probabilities = reinterpret_cast<P*>(row);  // never ahead of what is read
    for (int64_t c = 0; c < columns; c += kLanes) {
      VecF p = exp2_nonpositive(load(row + c) * scale - new_max);
      narrow(probabilities + c, p);
      sum += p;
    }
    store(state.sum + r * kLanes, sum);
  }
}

template <class T>
class Attend {
  using Factor = Operand<T>;
  using Probability = std::conditional_t<kElements<Factor> == 2, T, float>;

 public:
  Attend(const Call& call, const Item& item, Scratch& scratch)
      : call_(call),
        item_(item),
        group_(call.heads / call.kv_heads),
        m_(item.rows * group_),
        v_row_(round_up(call.head_size, kLanes)),
        depth_((call.head_size + kElements<Factor> - 1) / kElements<Factor>) {
    int64_t padded = round_up(m_, kPanelRows), k = call.head_size;
    int64_t keys = item.dense ? call.key_count[item.t] : 0;
    int64_t floats = padded * k + k * kTile + kTile * v_row_ + padded * kTile +
                     state_floats(m_, v_row_) + item.rows * kTile + kTile;
    float* p = reinterpret_cast<float*>(scratch.bytes(4 * floats + keys));
    key_tile_ = reinterpret_cast<Factor*>(p), p += k * kTile;
    value_tile_ = reinterpret_cast<Factor*>(p), p += kTile * v_row_;
    scores_ = p, p += padded * kTile;
    mask_ = reinterpret_cast<int32_t*>(p), p += item.rows * kTile;
    query_ = reinterpret_cast<Factor*>(p), p += padded * k;
    float* state = p;
    p += state_floats(m_, v_row_) + kTile;
    seen_ = reinterpret_cast<uint8_t*>(p);
    state_ = state_at(item.partial ? item.partial : state, m_, v_row_);
  }

  void run() {
    load_query();
    std::fill(state_.sum, state_.sum + m_ * kLanes, 0.f);
    std::fill(state_.max, state_.max + m_, kFirstMax);
    std::fill(state_.acc, state_.acc + m_ * v_row_, 0.f);
    if (call_.amx_tiles)
      attend_amx_tiles();
    else
      attend_pages();
    if (item_.dense) attend_dense();
    if (!item_.partial) write_output();
  }

  // Adds the part at `from` (of the same rows, other keys) to this one's.
  void merge(float* from) {
    State other = state_at(from, m_, v_row_);
    for (int64_t r = 0; r < m_; r++) {
      float top = std::max(state_.max[r], other.max[r]);
      VecF mine = exp2_nonpositive(splat(state_.max[r] - top));
      VecF theirs = exp2_nonpositive(splat(other.max[r] - top));
      auto add = [&](float* a, const float* b) { store(a, load(a) * mine + load(b) * theirs); };
      add(state_.sum + r * kLanes, other.sum + r * kLanes);
      for (int64_t d = 0; d < v_row_; d += kLanes)
        add(state_.acc + r * v_row_ + d, other.acc + r * v_row_ + d);
      state_.max[r] = top;
    }
  }

  void write_output() {
    int64_t k = call_.head_size;
    for (int64_t r = 0; r < m_; r++) {
      T* to = static_cast<T*>(call_.output) + offset(r, call_.output_stride);
      float sum = sum_lanes(load(state_.sum + r * kLanes));
      VecF inverse = splat(sum == 0.f ? 0.f : 1.f / sum);
      const float* acc = state_.acc + r * v_row_;
      int64_t d = 0;
      for (; d + kLanes <= k; d += kLanes) narrow(to + d, load(acc + d) * inverse);
      for (; d < k; d++) narrow_one(to + d, acc[d] * inverse[0]);
    }
  }

 private:
  // Row r of the state = query row r / group_, head r % group_ of the KV head's group.
  int64_t offset(int64_t r, const int64_t stride[2]) const {
    int64_t row = call_.query_start[item_.t] + item_.first_row + r / group_;
    return row * stride[0] + (item_.kv_head * group_ + r % group_) * stride[1];
  }

  // -> query_ [panels, depth_, kPanelRows].
  void load_query() {
    constexpr int step = kElements<Factor>;
    const T zero{};
    for (int64_t r = 0; r < round_up(m_, kPanelRows); r++) {
      // Rows that only fill the last panel up repeat the last row.
      int64_t at = offset(std::min(r, m_ - 1), call_.query_stride);
      const T* from = static_cast<const T*>(call_.query) + at;
      Factor* to = query_ + r / kPanelRows * kPanelRows * depth_ + r % kPanelRows;
      for (int64_t d = 0; d < call_.head_size; d += step, to += kPanelRows)
        store_operand(to, from + d, d + 1 < call_.head_size ? from + d + 1 : &zero);
    }
  }

  // The `count` keys from `slot` of one block, without copying them first; false: not possible,
  // or not worth it. Pairs have to be joined anyway, and many rows repay a float32 copy.
  bool attend_in_place(const T* key, const T* value, int64_t room, int64_t count,
                       const int32_t* mask) {
    if constexpr (kElements<Factor> == 1) {
      const int64_t *ks = call_.page_key_stride, *vs = call_.page_value_stride;
      if (ks[2] != 1 || vs[3] != 1 || v_row_ != call_.head_size) return false;
      if (!std::is_same_v<T, float> && m_ > 4 * kPanelRows) return false;
      if (round_up(count, kLanes) > room) return false;
      attend_tile(key, ks[3], value, vs[2], count, mask, 0);
      return true;
    }
    return false;
  }

  void attend_pages() {
    const int64_t *ks = call_.page_key_stride, *vs = call_.page_value_stride;
    const int32_t* table = call_.block_table + item_.t * call_.block_table_stride;
    const T* key_base = static_cast<const T*>(call_.page_key) + item_.kv_head * ks[1];
    const T* value_base = static_cast<const T*>(call_.page_value) + item_.kv_head * vs[1];
    const T *keys[kTile], *values[kTile];
    for (int64_t start = item_.first_key, end; start < item_.last_key; start = end) {
      // A window may begin anywhere; tiles after the first do not, so that fewer straddle blocks.
      end = std::min(item_.last_key, start / kTile * kTile + kTile);
      int64_t count = end - start, packed = 0;
      for (int64_t c = 0; c < kTile; c++) mask_[c] = -(c < count);
      const int32_t* mask = count % kLanes ? mask_ : nullptr;
      while (packed < count) {
        int64_t slot = (start + packed) % call_.block_size, room = call_.block_size - slot;
        int64_t block = table[(start + packed) / call_.block_size];
        const T* key = key_base + block * ks[0] + slot * ks[2];
        const T* value = value_base + block * vs[0] + slot * vs[2];
        if (packed == 0 && attend_in_place(key, value, room, count, mask)) break;
        int64_t n = std::min(room, count - packed);
        if (ks[2] == 1)
          pack_keys_transposed(key, n, room, ks[3], call_.head_size, packed, key_tile_);
        for (int64_t i = 0; i < n; i++, packed++) {
          keys[packed] = key + i * ks[2];
          values[packed] = value + i * vs[2];
        }
      }
      if (packed == 0) continue;
      if (ks[2] != 1) pack_keys_by_row(keys, count, ks[3], call_.head_size, key_tile_);
      pack_values(values, count, vs[3], call_.head_size, v_row_, value_tile_);
      attend_tile(key_tile_, kTile, value_tile_, v_row_, count, mask, 0);
    }
  }

  // A tile of 16 slots is copied whole, so the first may begin before a window: hidden columns.
  void attend_amx_tiles() {
    if constexpr (std::is_same_v<T, BFloat16>) {
      if (item_.first_key == item_.last_key) return;
      const int64_t *ks = call_.page_key_stride, *vs = call_.page_value_stride;
      const int32_t* table = call_.block_table + item_.t * call_.block_table_stride;
      const T* key_base = static_cast<const T*>(call_.page_key) + item_.kv_head * ks[1];
      const T* value_base = static_cast<const T*>(call_.page_value) + item_.kv_head * vs[1];
      int64_t start = item_.first_key / kAmxRow * kAmxRow;
      for (int64_t end; start < item_.last_key; start = end) {
        end = std::min(item_.last_key, start / kTile * kTile + kTile);
        int64_t count = end - start, hidden = std::max<int64_t>(0, item_.first_key - start);
        for (int64_t c = 0; c < kTile; c++) mask_[c] = -(hidden <= c && c < count);
        const int32_t* mask = hidden || count % kLanes ? mask_ : nullptr;
        for (int64_t c = 0, n; c < count; c += n) {
          int64_t slot = (start + c) % call_.block_size;
          int64_t block = table[(start + c) / call_.block_size];
          n = std::min(count - c, call_.block_size - slot);
          unpack_amx_keys(key_base + block * ks[0], slot, n, call_.head_size, key_tile_ + c);
          unpack_amx_values(value_base + block * vs[0], call_.block_size, slot, n,
                            std::max<int64_t>(0, hidden - c), call_.head_size,
                            value_tile_ + c / kElements<Factor> * v_row_, v_row_);
        }
        attend_tile(key_tile_, kTile, value_tile_, v_row_, count, mask, 0);
      }
    }
  }

  // Keys that no row sees are dropped: a caller's buffer may hold anything there.
  void attend_dense() {
    int64_t t = item_.t, total = call_.key_count[t];
    const int64_t* vs = call_.visible_stride;
    const uint8_t* visible = call_.visible + t * vs[0] + item_.first_row * vs[1];
    std::fill(seen_, seen_ + total, 0);
    for (int64_t i = 0; i < item_.rows; i++)
      for (int64_t j = 0; j < total; j++) seen_[j] |= visible[i * vs[1] + j * vs[2]];
    const T* key_base = static_cast<const T*>(call_.key) + item_.kv_head * call_.key_stride[1];
    const T* value_base =
        static_cast<const T*>(call_.value) + item_.kv_head * call_.value_stride[1];
    const T *keys[kTile], *values[kTile];
    for (int64_t j = 0; j < total;) {
      int64_t count = 0;
      for (; j < total && count < kTile; j++) {
        if (!seen_[j]) continue;
        keys[count] = key_base + (call_.key_start[t] + j) * call_.key_stride[0];
        values[count] = value_base + (call_.key_start[t] + j) * call_.value_stride[0];
        for (int64_t i = 0; i < item_.rows; i++)
          mask_[i * kTile + count] = -int32_t(visible[i * vs[1] + j * vs[2]] != 0);
        count++;
      }
      if (!count) return;
      for (int64_t i = 0; i < item_.rows; i++)
        std::fill(mask_ + i * kTile + count, mask_ + i * kTile + round_up(count, kLanes), 0);
      pack_keys_by_row(keys, count, 1, call_.head_size, key_tile_);
      pack_values(values, count, 1, call_.head_size, v_row_, value_tile_);
      attend_tile(key_tile_, kTile, value_tile_, v_row_, count, mask_, kTile);
    }
  }

  // keys: [head_size, key_row], a key per column; values: [count, value_row], a key per row.
  template <class B>
  void attend_tile(const B* keys, int64_t key_row, const B* values, int64_t value_row,
                   int64_t count, const int32_t* mask, int64_t mask_row) {
    constexpr int step = kElements<Factor>;
    int64_t columns = round_up(count, kLanes);
    for (int64_t r = 0; r < m_; r += kPanelRows)
      gemm_rows<1, kPanelRows, false>(m_ - r, query_ + r * depth_, keys, key_row,
                                      scores_ + r * kTile, kTile, depth_, columns / kLanes);
    float scale = float(call_.scale * 1.4426950408889634);  // scores in powers of two
    softmax_tile<Probability>(scores_, scale, m_, group_, columns, mask, mask_row, state_, v_row_);
    const Factor* weights = reinterpret_cast<const Factor*>(scores_);
    for (int64_t r = 0; r < m_; r += kPanelRows)
      gemm_rows<kTile, 1, true>(m_ - r, weights + r * kTile, values, value_row,
                                state_.acc + r * v_row_, v_row_, (count + step - 1) / step,
                                v_row_ / kLanes);
  }

  const Call& call_;
  const Item& item_;
  int64_t group_, m_, v_row_, depth_;
  float* scores_;
  Factor *query_, *key_tile_, *value_tile_;
  int32_t* mask_;
  uint8_t* seen_;
  State state_;
};
