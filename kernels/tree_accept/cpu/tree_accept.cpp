// SPDX-License-Identifier: Apache-2.0
// The walk of tree_accept. All arrays are contiguous; B requests, R rows, D depth.

#include <cstdint>

namespace {

// As cpu_impl.py packs it: 8-byte fields, in order.
struct Call {
  const int64_t *tokens, *parent;  // [B, R]
  const uint8_t* valid;            // [B, R]
  const int64_t* draws;            // [B, R]
  int64_t *rows, *length, *output;  // [B, D+1], [B], [B, D+1]
  int64_t batch, tree_rows, depth;
};

// The lowest valid child of `row` that carries `token`, 0 for none: row 0 is nobody's child.
int64_t child_with(const Call& call, int64_t base, int64_t row, int64_t token) {
  for (int64_t k = 1; k < call.tree_rows; k++) {
    int64_t i = base + k;
    if (call.valid[i] && call.parent[i] == row && call.tokens[i] == token) return k;
  }
  return 0;
}

void walk(const Call& call, int64_t b) {
  int64_t base = b * call.tree_rows, columns = call.depth + 1;
  int64_t *rows = call.rows + b * columns, *output = call.output + b * columns;
  int64_t row = 0, length = 0;
  rows[0] = 0;
  output[0] = call.draws[base];
  while (length < call.depth) {
    row = child_with(call, base, row, output[length]);
    if (row == 0) break;
    length++;
    rows[length] = row;
    output[length] = call.draws[base + row];
  }
  call.length[b] = length;
  for (int64_t i = length + 1; i < columns; i++) {
    rows[i] = 0;
    output[i] = -1;
  }
}

}  // namespace

extern "C" {

int64_t tree_accept_call_bytes() { return sizeof(Call); }

void tree_accept(const Call* call) {
  for (int64_t b = 0; b < call->batch; b++) walk(*call, b);
}

}
