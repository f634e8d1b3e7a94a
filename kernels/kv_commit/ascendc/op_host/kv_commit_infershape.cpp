// SPDX-License-Identifier: Apache-2.0
// Shapes and types of kv_commit's outputs from those of its inputs.
#include "register/op_impl_registry.h"

namespace {

constexpr size_t kLinearSlots = 1, kKeyCache = 4, kValueCache = 5;  // inputs
constexpr size_t kSlots = 0;  // output; the caches follow it, first all keys, then all values

// A cache's shapes and types are those of the input that it is.
ge::graphStatus InferShape(gert::InferShapeContext* context) {
  const gert::Shape* linear = context->GetInputShape(kLinearSlots);
  gert::Shape* slots = context->GetOutputShape(kSlots);
  if (linear == nullptr || slots == nullptr) return ge::GRAPH_FAILED;
  *slots = *linear;
  size_t output = kSlots + 1;
  for (size_t cache : {kKeyCache, kValueCache}) {
    const auto* layers = context->GetIrInputInstanceInfo(cache);
    if (layers == nullptr) return ge::GRAPH_FAILED;
    for (size_t i = 0; i < layers->GetInstanceNum(); i++) {
      const gert::Shape* pages = context->GetDynamicInputShape(cache, i);
      gert::Shape* shape = context->GetOutputShape(output++);
      if (pages == nullptr || shape == nullptr) return ge::GRAPH_FAILED;
      *shape = *pages;
    }
  }
  return ge::GRAPH_SUCCESS;
}

ge::graphStatus InferDataType(gert::InferDataTypeContext* context) {
  context->SetOutputDataType(kSlots, ge::DT_INT64);
  size_t output = kSlots + 1;
  for (size_t cache : {kKeyCache, kValueCache}) {
    const auto* layers = context->GetIrInputInstanceInfo(cache);
    if (layers == nullptr) return ge::GRAPH_FAILED;
    for (size_t i = 0; i < layers->GetInstanceNum(); i++) {
      context->SetOutputDataType(output++, context->GetDynamicInputDataType(cache, i));
    }
  }
  return ge::GRAPH_SUCCESS;
}

}  // namespace

namespace ops {
IMPL_OP_INFERSHAPE(KvCommit).InferShape(InferShape).InferDataType(InferDataType);
}  // namespace ops
