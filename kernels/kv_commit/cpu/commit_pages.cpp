// SPDX-License-Identifier: Apache-2.0
// Scratch rows with a slot, to the pages of all layers. Elements are only moved: two or four bytes.

#include <cstdint>
#include <vector>

namespace {

// Where an element of a page lies, in elements: slot and element are each split in two, for pages
// in tiles; `_group` of the lower part make one of the upper.
struct Pages {
  int64_t block, head, slot_high, slot_low, element_high, element_low, slot_group, element_group;
};

// As cpu_impl.py packs it: 8-byte fields, in order.
struct Call {
  const int64_t* addresses;  // [L, 4]: key scratch, value scratch, key pages, value pages
  const int64_t* slots;      // [S]
  int64_t layers, rows, heads, head_size, block_size, element_bytes;
  int64_t scratch_row, scratch_head;
  Pages key, value;
};

// Elements below which waking the other threads costs more than it saves.
constexpr int64_t kSerialElements = 1 << 15;

struct Kept {
  int64_t row, slot;
};

template <typename Element>
void copy_row(const Call& call, const Pages& pages, int64_t from, int64_t to, Kept kept) {
  int64_t place = kept.slot % call.block_size;
  const auto* row = reinterpret_cast<const Element*>(from) + kept.row * call.scratch_row;
  auto* page = reinterpret_cast<Element*>(to) + kept.slot / call.block_size * pages.block +
               place / pages.slot_group * pages.slot_high +
               place % pages.slot_group * pages.slot_low;
  for (int64_t head = 0; head < call.heads; head++) {
    const Element* source = row + head * call.scratch_head;
    for (int64_t group = 0; group * pages.element_group < call.head_size; group++) {
      Element* target = page + head * pages.head + group * pages.element_high;
      for (int64_t i = 0; i < pages.element_group; i++) target[i * pages.element_low] = *source++;
    }
  }
}

template <typename Element>
void commit(const Call& call, const std::vector<Kept>& kept) {
  int64_t count = kept.size(), copies = 2 * call.layers * count;
#pragma omp parallel for if (copies * call.heads * call.head_size > kSerialElements)
  for (int64_t copy = 0; copy < copies; copy++) {
    int64_t layer = copy / (2 * count), side = copy / count % 2;
    const int64_t* addresses = call.addresses + 4 * layer;
    copy_row<Element>(call, side ? call.value : call.key, addresses[side], addresses[2 + side],
                      kept[copy % count]);
  }
}

}  // namespace

extern "C" {

int64_t commit_pages_call_bytes() { return sizeof(Call); }

void commit_pages(const Call* call) {
  std::vector<Kept> kept;
  for (int64_t row = 0; row < call->rows; row++) {
    if (call->slots[row] >= 0) kept.push_back({row, call->slots[row]});
  }
  if (kept.empty()) return;
  if (call->element_bytes == 2) {
    commit<uint16_t>(*call, kept);
  } else {
    commit<uint32_t>(*call, kept);
  }
}

}
