// SPDX-License-Identifier: Apache-2.0
// Page slots of accepted rows. All arrays are contiguous; B requests, R rows.

#include <algorithm>
#include <cstdint>

namespace {

// As cpu_impl.py packs it: 8-byte fields, in order.
struct Call {
  const int64_t* path;          // [B, path_columns]
  const int64_t* linear_slots;  // [B, R]
  int64_t* slots;               // [B, R]
  int64_t batch, rows, path_columns;
};

}  // namespace

extern "C" {

int64_t commit_slots_call_bytes() { return sizeof(Call); }

// Whether every row on a path is a row of the tree; others are skipped.
int32_t commit_slots(const Call* call) {
  std::fill_n(call->slots, call->batch * call->rows, int64_t{-1});
  // A tree of fewer nodes than D has no longer path than that.
  int64_t reach = std::min(call->path_columns, call->rows);
  bool in_tree = true;
  for (int64_t b = 0; b < call->batch; b++) {
    const int64_t* path = call->path + b * call->path_columns;
    const int64_t* linear = call->linear_slots + b * call->rows;
    for (int64_t i = 1; i < reach; i++) {
      // Row 0 stands for "no node" beyond the path's length.
      if (path[i] == 0) continue;
      if (path[i] < 0 || path[i] >= call->rows) {
        in_tree = false;
        continue;
      }
      call->slots[b * call->rows + path[i]] = linear[i];
    }
  }
  return in_tree;
}

}
