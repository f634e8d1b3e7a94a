// SPDX-License-Identifier: Apache-2.0
// Tree attention on the CPU: cuts a call into items for the threads. The C face is at the end.

#include <omp.h>

#include <atomic>
#include <vector>

#include "attend.h"

namespace {

// Rows of scores kept at once, so that a tile of them stays in the first cache levels.
constexpr int64_t kItemRows = 96;
// A split of the prefix is at least this long: merging costs about as much as 50 keys.
constexpr int64_t kSplitKeys = 512;
// Multiply-adds below which waking the other threads costs more than it saves (some 10 us).
constexpr int64_t kSerialWork = 400'000;

struct Plan {
  std::vector<Item> items;
  std::vector<int64_t> groups;  // first item of each group that shares its rows, and the end
  int64_t partial_floats = 0;
  int64_t work = 0;
};

int64_t first_paged_key(const Call& call, int64_t t) {
  return call.prefix_start ? call.prefix_start[t] : 0;
}

void make_plan(const Call& call, int64_t threads, Plan& plan) {
  plan.items.clear(), plan.groups.clear();
  plan.partial_floats = plan.work = 0;
  int64_t group = call.heads / call.kv_heads, v_row = round_up(call.head_size, kLanes);
  int64_t rows_at_once = std::max<int64_t>(1, kItemRows / group), whole = 0;
  for (int64_t t = 0; t < call.requests; t++) {
    int64_t rows = call.query_count[t];
    whole += (rows + rows_at_once - 1) / rows_at_once * call.kv_heads;
    int64_t keys = call.prefix_len[t] - first_paged_key(call, t) + call.key_count[t];
    plan.work += rows * call.heads * call.head_size * 2 * keys;
  }
  if (plan.work < kSerialWork) threads = 1;
  int64_t splits = whole ? (threads + whole - 1) / whole : 1;
  for (int64_t t = 0; t < call.requests; t++) {
    int64_t start = first_paged_key(call, t), prefix = call.prefix_len[t];
    int64_t parts = std::max<int64_t>(1, std::min(splits, (prefix - start) / kSplitKeys));
    // Parts meet at multiples of kTile, as tiles do, wherever a window begins.
    int64_t whole_tiles = start / kTile * kTile;
    int64_t part_keys = round_up((prefix - whole_tiles + parts - 1) / parts, kTile);
    for (int64_t row = 0; row < call.query_count[t]; row += rows_at_once) {
      int64_t rows = std::min(rows_at_once, call.query_count[t] - row);
      for (int64_t head = 0; head < call.kv_heads; head++) {
        plan.groups.push_back(plan.items.size());
        for (int64_t part = 0; part < parts; part++) {
          int64_t first = whole_tiles + part * part_keys, last = first + part_keys;
          first = std::min(prefix, std::max(start, first)), last = std::min(prefix, last);
          plan.items.push_back({t, head, row, rows, first, last, part == parts - 1, nullptr});
          if (parts > 1) plan.partial_floats += round_up(state_floats(rows * group, v_row), 16);
        }
      }
    }
  }
  plan.groups.push_back(plan.items.size());
}

// Each part of a split group gets its own state in `partials`.
void place_partials(const Call& call, Plan& plan, Scratch& partials) {
  int64_t group = call.heads / call.kv_heads, v_row = round_up(call.head_size, kLanes);
  float* at = reinterpret_cast<float*>(partials.bytes(4 * plan.partial_floats));
  for (size_t g = 0; g + 1 < plan.groups.size(); g++) {
    if (plan.groups[g + 1] - plan.groups[g] == 1) continue;
    for (int64_t i = plan.groups[g]; i < plan.groups[g + 1]; i++) {
      plan.items[i].partial = at;
      at += round_up(state_floats(plan.items[i].rows * group, v_row), 16);
    }
  }
}

template <class T>
void merge_group(const Call& call, const Plan& plan, size_t g, Scratch& scratch) {
  int64_t first = plan.groups[g], end = plan.groups[g + 1];
  if (end - first == 1) return;
  Attend<T> whole(call, plan.items[first], scratch);
  for (int64_t i = first + 1; i < end; i++) whole.merge(plan.items[i].partial);
  whole.write_output();
}

template <class T>
void tree_attention(const Call& call) {
  thread_local Plan plan;
  thread_local Scratch partials;
  int64_t threads = omp_in_parallel() ? 1 : omp_get_max_threads();
  make_plan(call, threads, plan);
  if (plan.partial_floats) place_partials(call, plan, partials);

  const Plan& shared = plan;  // the caller's, not each thread's own
  std::atomic<size_t> next_item{0}, next_group{0};
  auto attend = [&] {
    thread_local Scratch scratch;
    for (size_t i; (i = next_item++) < shared.items.size();)
      Attend<T>(call, shared.items[i], scratch).run();
  };
  auto merge = [&] {
    thread_local Scratch scratch;
    for (size_t g; (g = next_group++) + 1 < shared.groups.size();)
      merge_group<T>(call, shared, g, scratch);
  };
  // Without `num_threads`: a team of another size would make the runtime rebuild its pool.
  if (threads == 1 || shared.work < kSerialWork || shared.items.size() < 2) {
    attend();
    merge();
    return;
  }
#pragma omp parallel
  {
    attend();
    if (shared.partial_floats) {
#pragma omp barrier
      merge();
    }
  }
}

}  // namespace

extern "C" {

int64_t tree_attention_call_bytes() { return sizeof(Call); }
void tree_attention_float32(const Call* call) { tree_attention<float>(*call); }
void tree_attention_bfloat16(const Call* call) { tree_attention<BFloat16>(*call); }
void tree_attention_float16(const Call* call) { tree_attention<Half>(*call); }

}
