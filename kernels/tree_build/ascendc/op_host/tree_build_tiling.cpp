// SPDX-License-Identifier: Apache-2.0
// Hands tree_build's shapes to ComputeTiling, and what that gives to the kernel's launch.
#include "tree_build_tiling.h"

#include "log/ops_log.h"
#include "register/op_def_registry.h"
#include "tiling/platform/platform_ascendc.h"

namespace optiling {

constexpr size_t kRootTokens = 0, kTokens = 1, kParents = 3;  // inputs; scores are between

struct TreeBuildCompileInfo {};

static int64_t Dimension(const gert::StorageShape* shape, size_t at, size_t dimensions) {
  if (shape == nullptr || shape->GetStorageShape().GetDimNum() != dimensions) return -1;
  return shape->GetStorageShape().GetDim(at);
}

// Whether the inputs fit together; their sizes.
static bool ReadShape(gert::TilingContext* context, TreeBuildShape& shape) {
  const auto* attributes = context->GetAttrs();
  shape.batch = Dimension(context->GetInputShape(kRootTokens), 0, 1);
  shape.width = *attributes->GetAttrPointer<int64_t>(0);
  shape.depth = *attributes->GetAttrPointer<int64_t>(1);
  shape.nodes = *attributes->GetAttrPointer<int64_t>(2);
  const int64_t capacity = tree_build_op::Capacity(shape);
  for (size_t i = kTokens; i <= kParents; i++) {
    const auto* input = context->GetInputShape(i);
    if (Dimension(input, 0, 2) != shape.batch || Dimension(input, 1, 2) != capacity) return false;
  }
  return true;
}

static void ReadDevice(gert::TilingContext* context, TreeBuildShape& shape) {
  auto platform = platform_ascendc::PlatformAscendC(context->GetPlatformInfo());
  uint64_t unified = 0;
  platform.GetCoreMemSize(platform_ascendc::CoreMemType::UB, unified);
  shape.cores = platform.GetCoreNumAiv();
  shape.unifiedBytes = static_cast<int64_t>(unified);
  context->GetWorkspaceSizes(1)[0] = platform.GetLibApiWorkSpaceSize();
}

static ge::graphStatus Tiling(gert::TilingContext* context) {
  TreeBuildShape shape;
  auto* tiling = context->GetTilingData<TreeBuildTilingData>();
  if (tiling == nullptr) return ge::GRAPH_FAILED;
  if (!ReadShape(context, shape)) {
    OPS_LOG_E(context, "%s",
              "tree_build: root_tokens must be [B]; tokens, scores and parents [B, W + (D-1)*W*W]");
    return ge::GRAPH_FAILED;
  }
  ReadDevice(context, shape);
  if (const char* refusal = ComputeTiling(shape, *tiling)) {
    OPS_LOG_E(context, "%s", refusal);
    return ge::GRAPH_FAILED;
  }
  context->SetBlockDim(tiling->coreCount);
  context->SetTilingKey(0);
  return ge::GRAPH_SUCCESS;
}

static ge::graphStatus Prepare(gert::TilingParseContext*) { return ge::GRAPH_SUCCESS; }

IMPL_OP_OPTILING(TreeBuild).Tiling(Tiling).TilingParse<TreeBuildCompileInfo>(Prepare);

}  // namespace optiling
