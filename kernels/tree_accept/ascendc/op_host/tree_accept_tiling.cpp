// SPDX-License-Identifier: Apache-2.0
// Hands tree_accept's shapes to ComputeTiling, and what that gives to the kernel's launch.
#include "tree_accept_tiling.h"

#include "log/ops_log.h"
#include "register/op_def_registry.h"
#include "tiling/platform/platform_ascendc.h"

namespace optiling {

constexpr size_t kInputs = 4;  // tokens, parent, valid, draws

struct TreeAcceptCompileInfo {};

static int64_t Dimension(const gert::StorageShape* shape, size_t at, size_t dimensions) {
  if (shape == nullptr || shape->GetStorageShape().GetDimNum() != dimensions) return -1;
  return shape->GetStorageShape().GetDim(at);
}

// Whether the inputs fit together; their sizes.
static bool ReadShape(gert::TilingContext* context, TreeAcceptShape& shape) {
  const int64_t* depth = context->GetAttrs()->GetAttrPointer<int64_t>(0);
  shape.batch = Dimension(context->GetInputShape(0), 0, 2);
  shape.rows = Dimension(context->GetInputShape(0), 1, 2);
  shape.depth = *depth;
  for (size_t i = 0; i < kInputs; i++) {
    const auto* input = context->GetInputShape(i);
    if (Dimension(input, 0, 2) != shape.batch || Dimension(input, 1, 2) != shape.rows) return false;
  }
  return true;
}

static void ReadDevice(gert::TilingContext* context, TreeAcceptShape& shape) {
  auto platform = platform_ascendc::PlatformAscendC(context->GetPlatformInfo());
  uint64_t unified = 0;
  platform.GetCoreMemSize(platform_ascendc::CoreMemType::UB, unified);
  shape.cores = platform.GetCoreNumAiv();
  shape.unifiedBytes = static_cast<int64_t>(unified);
  context->GetWorkspaceSizes(1)[0] = platform.GetLibApiWorkSpaceSize();
}

static ge::graphStatus Tiling(gert::TilingContext* context) {
  TreeAcceptShape shape;
  auto* tiling = context->GetTilingData<TreeAcceptTilingData>();
  if (tiling == nullptr) return ge::GRAPH_FAILED;
  if (!ReadShape(context, shape)) {
    OPS_LOG_E(context, "%s",
              "tree_accept: tokens, parent, valid and draws must all be [B, R]");
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

IMPL_OP_OPTILING(TreeAccept).Tiling(Tiling).TilingParse<TreeAcceptCompileInfo>(Prepare);

}  // namespace optiling
