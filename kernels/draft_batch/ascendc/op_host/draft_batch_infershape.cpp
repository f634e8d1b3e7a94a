// SPDX-License-Identifier: Apache-2.0
// Shapes and types of draft_batch's outputs from those of its inputs.
#include "register/op_impl_registry.h"

namespace {

constexpr size_t kIsTree = 3;     // input
constexpr size_t kDraftRows = 1;  // attribute
constexpr size_t kStart = 4, kSampleRows = 5, kOutputs = 6;  // outputs

ge::graphStatus InferShape(gert::InferShapeContext* context) {
  const gert::Shape* trees = context->GetInputShape(kIsTree);
  const auto* attributes = context->GetAttrs();
  if (trees == nullptr || attributes == nullptr) return ge::GRAPH_FAILED;
  const int64_t* rows = attributes->GetAttrPointer<int64_t>(kDraftRows);
  if (rows == nullptr) return ge::GRAPH_FAILED;
  const int64_t requests = trees->GetDim(0);
  for (size_t i = 0; i < kOutputs; i++) {
    gert::Shape* shape = context->GetOutputShape(i);
    if (shape == nullptr) return ge::GRAPH_FAILED;
    shape->SetDimNum(1);
    shape->SetDim(0, i == kStart ? requests + 1 : i == kSampleRows ? requests : *rows);
  }
  return ge::GRAPH_SUCCESS;
}

ge::graphStatus InferDataType(gert::InferDataTypeContext* context) {
  for (size_t i = 0; i < kOutputs; i++) context->SetOutputDataType(i, ge::DT_INT64);
  return ge::GRAPH_SUCCESS;
}

}  // namespace

namespace ops {
IMPL_OP_INFERSHAPE(DraftBatch).InferShape(InferShape).InferDataType(InferDataType);
}  // namespace ops
