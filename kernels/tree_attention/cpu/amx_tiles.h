// SPDX-License-Identifier: Apache-2.0
// A block's bfloat16 keys and values of one head as vLLM's CPU backend packs them for AMX
// (PagedKV.of_amx_tiles), copied to a tile of keys (key_tile.h). 16 pairs are adjacent there: of
// 16 slots two elements each, or of 16 elements two slots each. These are the operands where
// operands are pairs.
#pragma once

#include "key_tile.h"

constexpr int64_t kAmxRow = 16;

// Operands `to`... `+ 16` of the first of a pair's halves, and `second`... of the other one's.
ALWAYS_INLINE void copy_amx_row(const BFloat16* from, BFloat16Pair* to, BFloat16Pair*) {
  __builtin_memcpy(to, from, kAmxRow * sizeof *to);
}
ALWAYS_INLINE void copy_amx_row(const BFloat16* from, float* to, float* second) {
  for (int64_t i = 0; i < kAmxRow; i++) {
    to[i] = widen_one(from + 2 * i);
    second[i] = widen_one(from + 2 * i + 1);
  }
}

// Slots `slot`, a multiple of 16, .. + count -> columns of `tile`: whole 16s of them.
template <class O>
void unpack_amx_keys(const BFloat16* keys, int64_t slot, int64_t count, int64_t head_size,
                     O* tile) {
  constexpr int64_t second = kElements<O> == 1 ? kTile : 0;
  const BFloat16* from = keys + slot * head_size;
  for (int64_t s = 0; s < count; s += kAmxRow)
    for (int64_t d = 0; d < head_size; d += 2, from += 2 * kAmxRow) {
      O* to = tile + d / kElements<O> * kTile + s;
      copy_amx_row(from, to, to + second);
    }
}

// Slots `slot`, an even one, .. + count -> rows of `tile`, 0 for the first `hidden` of them and
// what fills a last pair up.
template <class O>
void unpack_amx_values(const BFloat16* values, int64_t block_size, int64_t slot, int64_t count,
                       int64_t hidden, int64_t head_size, O* tile, int64_t v_row) {
  const int64_t second = kElements<O> == 1 ? v_row : 0;
  for (int64_t d = 0; d < head_size; d += kAmxRow) {
    const BFloat16* from = values + d * block_size + slot * kAmxRow;
    for (int64_t s = 0; s < count; s += 2, from += 2 * kAmxRow) {
      O* to = tile + s / kElements<O> * v_row + d;
      if (s >= hidden && s + 1 < count) {
        copy_amx_row(from, to, to + second);
        continue;
      }
      BFloat16 row[2 * kAmxRow];
      for (int64_t i = 0; i < 2 * kAmxRow; i++) {
        bool live = hidden <= s + i % 2 && s + i % 2 < count;
        row[i] = live ? from[i] : BFloat16{};
      }
      copy_amx_row(row, to, to + second);
    }
  }
}
