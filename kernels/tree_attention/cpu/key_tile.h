// SPDX-License-Identifier: Apache-2.0
// A tile of up to kTile keys as operands of the products: K transposed [K, kTile], V row-major
// [kTile, v_row]. Where an operand is a pair, it joins two rows of the tile: K/2, kTile/2 of them.
// Only slots that hold a key are ever multiplied with V, so stale page contents (NaN included)
// cannot reach a result; a stale K column only reaches its own score, which is discarded.
#pragma once

#include "simd.h"

constexpr int kTile = 64;

// Keys whose head_size elements lie `dim_stride` apart, one pointer per key -> columns of `tile`.
template <class T>
void pack_keys_by_row(const T* const* keys, int64_t count, int64_t dim_stride, int64_t head_size,
                      Operand<T>* tile) {
  constexpr int step = kElements<Operand<T>>;
  const T zero{};
  for (int64_t s = 0; s < count; s++) {
    const T* key = keys[s];
    Operand<T>* to = tile + s;
    int64_t d = 0;
    for (; d + step <= head_size; d += step, to += kTile, key += step * dim_stride)
      store_operand(to, key, key + dim_stride);
    if (d < head_size) store_operand(to, key, &zero);
  }
}

// `count` keys whose slots are adjacent (K stored transposed) -> columns `first`... of `tile`.
// `room` slots may be read: those up to the end of the block.
template <class T>
void pack_keys_transposed(const T* keys, int64_t count, int64_t room, int64_t dim_stride,
                          int64_t head_size, int64_t first, Operand<T>* tile) {
  constexpr int step = kElements<Operand<T>>;
  const T zeros[kTile]{};
  int64_t rounded = (count + kLanes - 1) / kLanes * kLanes;
  int64_t vec_end = rounded <= room && first + rounded <= kTile ? rounded : count / kLanes * kLanes;
  for (int64_t d = 0; d < head_size; d += step) {
    const T* even = keys + d * dim_stride;
    const T* odd = d + 1 < head_size ? even + dim_stride : zeros;
    Operand<T>* to = tile + d / step * kTile + first;
    for (int64_t s = 0; s < vec_end; s += kLanes) store_operands(to + s, even + s, odd + s);
    for (int64_t s = vec_end; s < count; s++) store_operand(to + s, even + s, odd + s);
  }
}

// Values -> rows of `tile`, zero-padded to v_row elements and, in pairs, to an even count.
template <class T>
void pack_values(const T* const* values, int64_t count, int64_t dim_stride, int64_t head_size,
                 int64_t v_row, Operand<T>* tile) {
  constexpr int step = kElements<Operand<T>>;
  const T zeros[kLanes]{};
  int64_t vec_end = dim_stride == 1 ? head_size / kLanes * kLanes : 0;
  for (int64_t s = 0; s < count; s += step) {
    bool paired = s + 1 < count;
    const T *even = values[s], *odd = paired ? values[s + 1] : zeros;
    int64_t odd_stride = paired ? 1 : 0;
    Operand<T>* to = tile + s / step * v_row;
    int64_t d = 0;
    for (; d < vec_end; d += kLanes) store_operands(to + d, even + d, odd + d * odd_stride);
    for (; d < head_size; d++)
      store_operand(to + d, even + d * dim_stride, odd + d * dim_stride * odd_stride);
    for (; d < v_row; d++) store_operand(to + d, zeros, zeros);
  }
}
