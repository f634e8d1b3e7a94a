// SPDX-License-Identifier: Apache-2.0
// Hands kv_commit's shapes to ComputeTiling, and what that gives to the kernel's launch.
#include "kv_commit_tiling.h"

#include "log/ops_log.h"
#include "register/op_def_registry.h"
#include "tiling/platform/platform_ascendc.h"

namespace optiling {

// Inputs; those from kKeyScratch on have one tensor per layer.
constexpr size_t kPathRows = 0, kLinearSlots = 1, kKeyScratch = 2, kKeyCache = 4, kInputs = 6;

struct KvCommitCompileInfo {};

static int64_t Dimension(const gert::StorageShape* shape, size_t at, size_t dimensions) {
  if (shape == nullptr || shape->GetStorageShape().GetDimNum() != dimensions) return -1;
  return shape->GetStorageShape().GetDim(at);
}

// Whether all layers of a scratch or cache have the shape and type of the first layer's keys.
static bool SameLayers(gert::TilingContext* context, size_t input, size_t like, size_t layers) {
  const auto* instances = context->GetIrInputInstanceInfo(input);
  if (instances == nullptr || instances->GetInstanceNum() != layers) return false;
  const auto type = context->GetDynamicInputDesc(kKeyCache, 0)->GetDataType();
  const auto* first = context->GetDynamicInputShape(like, 0);
  for (size_t i = 0; i < layers; i++) {
    const auto* shape = context->GetDynamicInputShape(input, i);
    if (shape == nullptr || !(shape->GetStorageShape() == first->GetStorageShape())) {
      return false;
    }
    if (context->GetDynamicInputDesc(input, i)->GetDataType() != type) return false;
  }
  return true;
}

// Whether the inputs fit together; their sizes.
static bool ReadShape(gert::TilingContext* context, KvCommitShape& shape) {
  const auto* scratch = context->GetDynamicInputShape(kKeyScratch, 0);
  const auto* cache = context->GetDynamicInputShape(kKeyCache, 0);
  if (Dimension(scratch, 0, 3) < 0 || Dimension(cache, 0, 4) < 0) return false;
  const size_t layers = context->GetIrInputInstanceInfo(kKeyCache)->GetInstanceNum();
  shape.layers = static_cast<int64_t>(layers);
  for (size_t input = kKeyScratch; input < kInputs; input++) {
    const size_t like = input < kKeyCache ? kKeyScratch : kKeyCache;
    if (!SameLayers(context, input, like, layers)) return false;
  }
  for (size_t i = 1; i < 3; i++) {  // Hk and K
    if (Dimension(scratch, i, 3) != Dimension(cache, i + 1, 4)) return false;
  }
  const auto type = context->GetDynamicInputDesc(kKeyCache, 0)->GetDataType();
  shape.batch = Dimension(context->GetInputShape(kLinearSlots), 0, 2);
  shape.rows = Dimension(context->GetInputShape(kLinearSlots), 1, 2);
  shape.pathColumns = Dimension(context->GetInputShape(kPathRows), 1, 2);
  shape.rowBytes = Dimension(cache, 2, 4) * Dimension(cache, 3, 4) * ge::GetSizeByDataType(type);
  shape.scratchRows = Dimension(scratch, 0, 3);
  shape.cacheRows = Dimension(cache, 0, 4) * Dimension(cache, 1, 4);
  return Dimension(context->GetInputShape(kPathRows), 0, 2) == shape.batch;
}

static void ReadDevice(gert::TilingContext* context, KvCommitShape& shape) {
  auto platform = platform_ascendc::PlatformAscendC(context->GetPlatformInfo());
  uint64_t unified = 0;
  platform.GetCoreMemSize(platform_ascendc::CoreMemType::UB, unified);
  shape.cores = platform.GetCoreNumAiv();
  shape.unifiedBytes = static_cast<int64_t>(unified);
  context->GetWorkspaceSizes(1)[0] = platform.GetLibApiWorkSpaceSize();
}

static ge::graphStatus Tiling(gert::TilingContext* context) {
  KvCommitShape shape;
  auto* tiling = context->GetTilingData<KvCommitTilingData>();
  if (tiling == nullptr) return ge::GRAPH_FAILED;
  if (!ReadShape(context, shape)) {
    OPS_LOG_E(context, "%s",
              "kv_commit: scratches must be L of [X, Hk, K] and caches L of [blocks, block size,"
              " Hk, K], alike");
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

IMPL_OP_OPTILING(KvCommit).Tiling(Tiling).TilingParse<KvCommitCompileInfo>(Prepare);

}  // namespace optiling
