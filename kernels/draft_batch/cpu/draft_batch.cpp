// SPDX-License-Identifier: Apache-2.0
// The drafter's input rows. All arrays are contiguous; B requests, N target rows, R drafter rows.

#include <algorithm>
#include <cstdint>

namespace {

// As cpu_impl.py packs it: 8-byte fields, in order.
struct Call {
  const void* input_ids;                                  // [N], input_id_bytes each
  const int64_t* positions;                               // [N]
  const void* query_start;                                // [B+1], query_start_bytes each
  const uint8_t* is_tree;                                 // [B]
  const int64_t *path_rows, *path_length, *path_output;   // [B, path_columns], [B], as path_rows
  const int64_t *next_tokens, *linear_slots;              // [B], [N]
  int64_t *tokens, *draft_positions, *hidden_rows, *slots;  // [R]
  int64_t *draft_start, *sample_rows;                     // [B+1], [B]
  int64_t requests, depth, path_columns, input_id_bytes, query_start_bytes;
  int64_t rows, target_rows;
};

void put(const Call& call, int64_t at, int64_t token, int64_t position, int64_t hidden_row,
         int64_t slot) {
  call.tokens[at] = token;
  call.draft_positions[at] = position;
  call.hidden_rows[at] = hidden_row;
  call.slots[at] = slot;
}

int64_t integer(const void* array, int64_t bytes, int64_t index) {
  if (bytes == 4) return static_cast<const int32_t*>(array)[index];
  return static_cast<const int64_t*>(array)[index];
}

// D+1 drafter rows at `at`, of the target rows first .. first + last.
void tree_request(const Call& call, int64_t b, int64_t first, int64_t last, int64_t at) {
  const int64_t* rows = call.path_rows + b * call.path_columns;
  const int64_t* output = call.path_output + b * call.path_columns;
  int64_t length = call.path_length[b];
  for (int64_t i = 0; i <= call.depth; i++) {
    bool padded = i > length;
    // A tree cut by the scheduler may have fewer target rows than D+1: padding repeats the last.
    int64_t linear = first + std::min(i, last);
    put(call, at + i, padded ? 0 : output[i], call.positions[linear], first + rows[i],
        padded ? -1 : call.linear_slots[linear]);
  }
  call.sample_rows[b] = at + length;
}

// The target rows first .. first + last themselves, tokens shifted left by one.
void chain_request(const Call& call, int64_t b, int64_t first, int64_t last, int64_t at) {
  for (int64_t i = 0; i <= last; i++) {
    int64_t linear = first + i;
    int64_t token = i < last ? integer(call.input_ids, call.input_id_bytes, linear + 1)
                             : call.next_tokens[b];
    put(call, at + i, token, call.positions[linear], linear, call.linear_slots[linear]);
  }
  call.sample_rows[b] = at + last;
}

// N', or -1 if a request's rows are not among the `target_rows` or a tree lacks its root.
int64_t count_rows(const Call& call) {
  int64_t rows = 0, first = integer(call.query_start, call.query_start_bytes, 0);
  if (first < 0) return -1;
  for (int64_t b = 0; b < call.requests; b++) {
    int64_t end = integer(call.query_start, call.query_start_bytes, b + 1), count = end - first;
    if (count < (call.is_tree[b] ? 1 : 0) || end > call.target_rows) return -1;
    rows += call.is_tree[b] ? call.depth + 1 : count;
    first = end;
  }
  return rows;
}

}  // namespace

extern "C" {

int64_t draft_batch_call_bytes() { return sizeof(Call); }

// 0, and nothing is written, where `count_rows` does not give `rows`.
int32_t draft_batch(const Call* call) {
  if (count_rows(*call) != call->rows) return 0;
  int64_t at = 0, first = integer(call->query_start, call->query_start_bytes, 0);
  for (int64_t b = 0; b < call->requests; b++) {
    int64_t end = integer(call->query_start, call->query_start_bytes, b + 1);
    call->draft_start[b] = at;
    if (call->is_tree[b]) {
      tree_request(*call, b, first, end - first - 1, at);
      at += call->depth + 1;
    } else {
      chain_request(*call, b, first, end - first - 1, at);
      at += end - first;
    }
    first = end;
  }
  call->draft_start[call->requests] = at;
  return 1;
}

}
