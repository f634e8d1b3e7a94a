// SPDX-License-Identifier: Apache-2.0
// Runs a kernel on all its cores, one after another in a given order, behind a plain C ABI.
#pragma once

#include <memory>
#include <utility>

#include "kernel_operator.h"

namespace twin {

// As launch.py packs it. Tensors of one kernel argument follow each other; `alias` >= 0 names an
// earlier argument that this one is (an output that is an input updated in place).
struct TensorArgument {
  void* data;
  int64_t bytes;
  const char* name;
  int32_t role, argument, in_list, alias;
};

class Arguments {
 public:
  Arguments(const TensorArgument* tensors, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
      const TensorArgument& tensor = tensors[i];
      if (tensor.alias >= 0) {
        addresses_.push_back(addresses_.at(tensor.alias));
        continue;
      }
      uint8_t* address = Add(tensor.name, Role(tensor.role), tensor.data, tensor.bytes);
      tensor_regions_.push_back(owned_.back().get());
      if (!tensor.in_list) {
        addresses_.push_back(address);
        continue;
      }
      list_.push_back(address);
      const bool last = i + 1 == count || tensors[i + 1].argument != tensor.argument;
      if (last) addresses_.push_back(Describe(tensor));
    }
  }
  ~Arguments() { regions().clear(); }

  uint8_t* Add(const char* name, Role role, const void* data, int64_t bytes) {
    owned_.push_back(std::make_unique<Region>(name, role, data, bytes));
    regions().push_back(owned_.back().get());
    return owned_.back()->begin;
  }

  uint8_t** addresses() { return addresses_.data(); }
  int64_t count() const { return static_cast<int64_t>(addresses_.size()); }

  // Check every tensor, and only then hand the results back.
  void Finish(const TensorArgument* tensors, int64_t count) {
    for (const bool checked : {false, true}) {
      for (int64_t i = 0, at = 0; i < count; i++) {
        if (tensors[i].alias >= 0) continue;
        const Region& region = *tensor_regions_[at++];
        if (!checked) {
          region.Finish(tensors[i].data);
        } else if (region.role != Role::kInput) {
          memcpy(tensors[i].data, region.begin, region.bytes);
        }
      }
    }
  }

 private:
  uint8_t* Describe(const TensorArgument& tensor) {
    std::vector<uint64_t> words(1);
    for (size_t i = 0; i < list_.size(); i++) {
      words.push_back(1 | uint64_t(i) << 32);
      words.push_back(static_cast<uint64_t>(tensor.bytes));
    }
    words[0] = words.size() * 8;
    for (uint8_t* address : list_) words.push_back(reinterpret_cast<uint64_t>(address));
    list_.clear();
    return Add("<list>", Role::kInput, words.data(), static_cast<int64_t>(words.size() * 8));
  }

  std::vector<std::unique_ptr<Region>> owned_;
  std::vector<const Region*> tensor_regions_;
  std::vector<uint8_t*> addresses_, list_;
};

template <typename... A, size_t... index>
void Call(void (*kernel)(A...), uint8_t** addresses, std::index_sequence<index...>) {
  kernel(addresses[index]...);
}

template <typename... A>
void RunCores(void (*kernel)(A...), const TensorArgument* tensors, int64_t tensor_count,
              const void* tiling, int64_t tiling_bytes, const int32_t* order, int64_t cores) {
  Arguments arguments(tensors, tensor_count);
  if (arguments.count() + 2 != static_cast<int64_t>(sizeof...(A))) {
    Fail("%d arguments for a kernel that takes %d, workspace and tiling included",
         int(arguments.count()) + 2, int(sizeof...(A)));
  }
  std::vector<uint8_t*> addresses(arguments.addresses(),
                                  arguments.addresses() + arguments.count());
  addresses.push_back(arguments.Add("<workspace>", Role::kInOut, "", 0));
  addresses.push_back(arguments.Add("<tiling>", Role::kInput, tiling, tiling_bytes));
  launch().cores = static_cast<int>(cores);
  for (int64_t i = 0; i < cores; i++) {
    core().Start(order[i]);
    Call(kernel, addresses.data(), std::index_sequence_for<A...>());
    core().Finish();
  }
  arguments.Finish(tensors, tensor_count);
}

// 0, or 1 with the violation's text.
template <typename Kernel>
int32_t Launch(Kernel kernel, const TensorArgument* tensors, int64_t tensor_count,
               const void* tiling, int64_t tiling_bytes, const int32_t* order, int64_t cores,
               char* text, int64_t text_bytes) {
  try {
    RunCores(kernel, tensors, tensor_count, tiling, tiling_bytes, order, cores);
  } catch (const Violation& violation) {
    snprintf(text, text_bytes, "core %d: %s", core().index, violation.text);
    return 1;
  }
  return 0;
}

}  // namespace twin

// The tiling of an op starts with its core count; its shape is a struct of int64 fields.
#define TWIN_LAUNCHER(kernel, Shape, TilingData)                                                  \
  extern "C" const char* twin_tiling(const int64_t* shape, int64_t fields, void* tiling,          \
                                     int64_t bytes) {                                             \
    if (fields * 8 != int64_t(sizeof(Shape)) || bytes < int64_t(sizeof(TilingData)))              \
      return "launch.py and the tiling header differ";                                            \
    Shape value;                                                                                  \
    memcpy(&value, shape, sizeof(Shape));                                                         \
    TilingData data;                                                                              \
    const char* refusal = ComputeTiling(value, data);                                             \
    if (refusal == nullptr) memcpy(tiling, &data, sizeof(TilingData));                            \
    return refusal;                                                                               \
  }                                                                                               \
  extern "C" int64_t twin_tiling_bytes() { return sizeof(TilingData); }                           \
  extern "C" int32_t twin_launch(const twin::TensorArgument* tensors, int64_t tensor_count,       \
                                 const void* tiling, int64_t tiling_bytes, const int32_t* order,  \
                                 int64_t cores, char* text, int64_t text_bytes) {                 \
    return twin::Launch(&kernel, tensors, tensor_count, tiling, tiling_bytes, order, cores, text, \
                        text_bytes);                                                              \
  }
