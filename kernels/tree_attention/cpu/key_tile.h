// SPDX-License-Identifier: Apache-2.0
// A tile of up to kTile keys in float32: K transposed [K, kTile], V row-major [kTile, v_row].
// Only slots that hold a key are ever multiplied with V, so stale page contents (NaN included)
// cannot reach a result; a stale K column only reaches its own score, which is discarded.
#pragma once

#include "simd.h"

constexpr int kTile = 64;

// Keys whose head_size elements lie `dim_stride` apart, one pointer per key -> columns of `tile`.
template <class T>
void pack_keys_by_row(const T* const* keys, int64_t count, int64_t dim_stride, int64_t head_size,
                      float* tile) {
  for (int64_t s = 0; s < count; s++) {
    const T* key = keys[s];
    float* column = tile + s;
    if (dim_stride == 1)
      for (int64_t d = 0; d < head_size; d++) column[d * kTile] = widen_one(key + d);
    else
      for (int64_t d = 0; d < head_size; d++) column[d * kTile] = widen_one(key + d * dim_stride);
  }
}

// `count` keys whose slots are adjacent (K stored transposed) -> columns `first`... of `tile`.
// `room` slots may be read: those up to the end of the block.
template <class T>
void pack_keys_transposed(const T* keys, int64_t count, int64_t room, int64_t dim_stride,
                          int64_t head_size, int64_t first, float* tile) {
  int64_t rounded = (count + kLanes - 1) / kLanes * kLanes;
  int64_t vec_end = rounded <= room && first + rounded <= kTile ? rounded : count / kLanes * kLanes;
  for (int64_t d = 0; d < head_size; d++) {
    const T* row = keys + d * dim_stride;
    float* to = tile + d * kTile + first;
    for (int64_t s = 0; s < vec_end; s += kLanes) store(to + s, widen(row + s));
    for (int64_t s = vec_end; s < count; s++) to[s] = widen_one(row + s);
  }
}

// Values -> rows of `tile`, zero-padded to v_row elements.
template <class T>
void pack_values(const T* const* values, int64_t count, int64_t dim_stride, int64_t head_size,
                 int64_t v_row, float* tile) {
  int64_t vec_end = dim_stride == 1 ? head_size / kLanes * kLanes : 0;
  for (int64_t s = 0; s < count; s++) {
    const T* value = values[s];
    float* to = tile + s * v_row;
    int64_t d = 0;
    for (; d < vec_end; d += kLanes) store(to + d, widen(value + d));
    for (; d < head_size; d++) to[d] = widen_one(value + d * dim_stride);
    for (; d < v_row; d++) to[d] = 0.f;
  }
}
