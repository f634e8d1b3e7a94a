// SPDX-License-Identifier: Apache-2.0
// Shapes and types of tree_accept's outputs from those of its inputs.
#include "register/op_impl_registry.h"

namespace {

constexpr size_t kDraws = 3;
constexpr size_t kRows = 0, kLength = 1, kOutput = 2, kOutputs = 3;

ge::graphStatus InferShape(gert::InferShapeContext* context) {
  const gert::Shape* draws = context->GetInputShape(kDraws);
  const auto* attributes = context->GetAttrs();
  if (draws == nullptr || attributes == nullptr) return ge::GRAPH_FAILED;
  const int64_t* depth = attributes->GetAttrPointer<int64_t>(0);
  if (depth == nullptr) return ge::GRAPH_FAILED;
  for (size_t i = 0; i < kOutputs; i++) {
    gert::Shape* shape = context->GetOutputShape(i);
    if (shape == nullptr) return ge::GRAPH_FAILED;
    shape->SetDimNum(i == kLength ? 1 : 2);
    shape->SetDim(0, draws->GetDim(0));
    if (i == kRows || i == kOutput) shape->SetDim(1, *depth + 1);
  }
  return ge::GRAPH_SUCCESS;
}

ge::graphStatus InferDataType(gert::InferDataTypeContext* context) {
  for (size_t i = 0; i < kOutputs; i++) context->SetOutputDataType(i, ge::DT_INT64);
  return ge::GRAPH_SUCCESS;
}

}  // namespace

namespace ops {
IMPL_OP_INFERSHAPE(TreeAccept).InferShape(InferShape).InferDataType(InferDataType);
}  // namespace ops
