// SPDX-License-Identifier: Apache-2.0
// Hands draft_batch's shapes to ComputeTiling, and what that gives to the kernel's launch.
#include "draft_batch_tiling.h"

#include "log/ops_log.h"
#include "register/op_def_registry.h"
#include "tiling/platform/platform_ascendc.h"

namespace optiling {

// Inputs.
constexpr size_t kInputIds = 0, kPositions = 1, kQueryStart = 2, kIsTree = 3, kPathRows = 4;
constexpr size_t kPathLength = 5, kPathOutput = 6, kNextTokens = 7, kLinearSlots = 8;

struct DraftBatchCompileInfo {};

static int64_t Dimension(const gert::StorageShape* shape, size_t at, size_t dimensions) {
  if (shape == nullptr || shape->GetStorageShape().GetDimNum() != dimensions) return -1;
  return shape->GetStorageShape().GetDim(at);
}

static int64_t IntegerBytes(gert::TilingContext* context, size_t input) {
  const auto* description = context->GetInputDesc(input);
  if (description == nullptr) return 0;
  return description->GetDataType() == ge::DT_INT64 ? 8 : 4;
}

// Whether the inputs fit together; their sizes.
static bool ReadShape(gert::TilingContext* context, DraftBatchShape& shape) {
  const auto* attributes = context->GetAttrs();
  shape.requests = Dimension(context->GetInputShape(kIsTree), 0, 1);
  shape.targetRows = Dimension(context->GetInputShape(kInputIds), 0, 1);
  shape.depth = *attributes->GetAttrPointer<int64_t>(0);
  shape.draftRows = *attributes->GetAttrPointer<int64_t>(1);
  shape.pathColumns = Dimension(context->GetInputShape(kPathRows), 1, 2);
  shape.inputIdBytes = IntegerBytes(context, kInputIds);
  shape.queryStartBytes = IntegerBytes(context, kQueryStart);
  if (Dimension(context->GetInputShape(kQueryStart), 0, 1) != shape.requests + 1) return false;
  for (size_t i : {kPositions, kLinearSlots}) {
    if (Dimension(context->GetInputShape(i), 0, 1) != shape.targetRows) return false;
  }
  for (size_t i : {kPathLength, kNextTokens}) {
    if (Dimension(context->GetInputShape(i), 0, 1) != shape.requests) return false;
  }
  for (size_t i : {kPathRows, kPathOutput}) {
    const auto* path = context->GetInputShape(i);
    if (Dimension(path, 0, 2) != shape.requests) return false;
    if (Dimension(path, 1, 2) != shape.pathColumns) return false;
  }
  return true;
}

static void ReadDevice(gert::TilingContext* context, DraftBatchShape& shape) {
  auto platform = platform_ascendc::PlatformAscendC(context->GetPlatformInfo());
  uint64_t unified = 0;
  platform.GetCoreMemSize(platform_ascendc::CoreMemType::UB, unified);
  shape.cores = platform.GetCoreNumAiv();
  shape.unifiedBytes = static_cast<int64_t>(unified);
  context->GetWorkspaceSizes(1)[0] = platform.GetLibApiWorkSpaceSize();
}

static ge::graphStatus Tiling(gert::TilingContext* context) {
  DraftBatchShape shape;
  auto* tiling = context->GetTilingData<DraftBatchTilingData>();
  if (tiling == nullptr) return ge::GRAPH_FAILED;
  if (!ReadShape(context, shape)) {
    OPS_LOG_E(context, "%s",
              "draft_batch: query_start must be [B + 1], paths [B, P], and the rest [B] or [N]");
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

IMPL_OP_OPTILING(DraftBatch).Tiling(Tiling).TilingParse<DraftBatchCompileInfo>(Prepare);

}  // namespace optiling
