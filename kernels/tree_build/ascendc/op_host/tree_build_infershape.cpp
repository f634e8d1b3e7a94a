// SPDX-License-Identifier: Apache-2.0
// Shapes and types of tree_build's outputs from those of its inputs.
#include "register/op_impl_registry.h"

namespace {

constexpr size_t kTokens = 1;  // input
constexpr size_t kNodes = 2;   // attribute
constexpr size_t kVisible = 4, kMask = 6, kOutputs = 9;  // outputs

ge::graphStatus InferShape(gert::InferShapeContext* context) {
  const gert::Shape* tokens = context->GetInputShape(kTokens);
  const auto* attributes = context->GetAttrs();
  if (tokens == nullptr || attributes == nullptr) return ge::GRAPH_FAILED;
  const int64_t* nodes = attributes->GetAttrPointer<int64_t>(kNodes);
  if (nodes == nullptr) return ge::GRAPH_FAILED;
  const int64_t rows = *nodes + 1;
  for (size_t i = 0; i < kOutputs; i++) {
    gert::Shape* shape = context->GetOutputShape(i);
    if (shape == nullptr) return ge::GRAPH_FAILED;
    shape->SetDimNum(i == kVisible || i == kMask ? 3 : 2);
    shape->SetDim(0, tokens->GetDim(0));
    shape->SetDim(1, rows);
    if (i == kVisible) shape->SetDim(2, rows);
    if (i == kMask) shape->SetDim(2, (rows + 31) / 32);
  }
  return ge::GRAPH_SUCCESS;
}

ge::graphStatus InferDataType(gert::InferDataTypeContext* context) {
  const ge::DataType types[kOutputs] = {ge::DT_INT64, ge::DT_INT64, ge::DT_INT64,
                                        ge::DT_BOOL,  ge::DT_BOOL,  ge::DT_FLOAT,
                                        ge::DT_INT32, ge::DT_INT64, ge::DT_INT64};
  for (size_t i = 0; i < kOutputs; i++) context->SetOutputDataType(i, types[i]);
  return ge::GRAPH_SUCCESS;
}

}  // namespace

namespace ops {
IMPL_OP_INFERSHAPE(TreeBuild).InferShape(InferShape).InferDataType(InferDataType);
}  // namespace ops
