// SPDX-License-Identifier: Apache-2.0
// The arguments of one tree attention call, as cpu_impl.py packs them: 8-byte fields, in order.
// T tree requests, N query rows, X dense rows, H query heads, Hk KV heads; strides in elements.
#pragma once

#include <cstdint>

struct Call {
  const void* query;                        // [N, H, head_size]
  const void* key;                          // [X, Hk, head_size]
  const void* value;                        // [X, Hk, head_size]
  const void* page_key;                     // [blocks, Hk, block_size, head_size]
  const void* page_value;                   // [blocks, Hk, block_size, head_size]
  void* output;                             // [N, H, head_size]
  const int32_t* block_table;               // [T, P]
  const int32_t* prefix_start;              // [T], or null: zeros
  const int32_t *prefix_len, *query_start, *query_count, *key_start, *key_count;  // [T]
  const uint8_t* visible;                   // [T, Rq, Rk]
  int64_t requests, heads, kv_heads, head_size, block_size;
  int64_t amx_tiles;  // whether pages are packed as in amx_tiles.h: strides of block and head only
  int64_t query_stride[2], key_stride[2], value_stride[2], output_stride[2];
  int64_t page_key_stride[4], page_value_stride[4];
  int64_t block_table_stride;
  int64_t visible_stride[3];
  double scale;
};
