// SPDX-License-Identifier: Apache-2.0
// Inputs, outputs and attributes of draft_batch:
// B requests, N target rows, N' drafter rows, P >= D + 1 columns.
#include <utility>
#include <vector>

#include "register/op_def_registry.h"

namespace ops {

class DraftBatch : public OpDef {
 public:
  explicit DraftBatch(const char* name) : OpDef(name) {
    Declare(this->Input("input_ids"),  // [N]
            {ge::DT_INT32, ge::DT_INT32, ge::DT_INT64, ge::DT_INT64}).AutoContiguous();
    Declare(this->Input("positions"), ge::DT_INT64).AutoContiguous();  // [N]
    Declare(this->Input("query_start"),                                // [B + 1]
            {ge::DT_INT32, ge::DT_INT64, ge::DT_INT32, ge::DT_INT64}).AutoContiguous();
    Declare(this->Input("is_tree"), ge::DT_BOOL).AutoContiguous();       // [B]
    Declare(this->Input("path_rows"), ge::DT_INT64).AutoContiguous();    // [B, P]
    Declare(this->Input("path_length"), ge::DT_INT64).AutoContiguous();  // [B]
    Declare(this->Input("path_output"), ge::DT_INT64).AutoContiguous();  // [B, P]
    Declare(this->Input("next_tokens"), ge::DT_INT64).AutoContiguous();  // [B]
    Declare(this->Input("linear_slots"), ge::DT_INT64).AutoContiguous();  // [N]
    for (const char* output : {"tokens", "draft_positions", "hidden_rows", "slots"}) {  // [N']
      Declare(this->Output(output), ge::DT_INT64);
    }
    Declare(this->Output("draft_start"), ge::DT_INT64);  // [B + 1]
    Declare(this->Output("sample_rows"), ge::DT_INT64);  // [B]
    this->Attr("depth").AttrType(REQUIRED).Int();
    this->Attr("draft_rows").AttrType(REQUIRED).Int();  // N', which the host knows

    OpAICoreConfig config;
    config.DynamicCompileStaticFlag(true)
        .DynamicFormatFlag(false)
        .DynamicRankSupportFlag(true)
        .DynamicShapeSupportFlag(true);
    this->AICore().AddConfig("ascend910b", config);
    this->AICore().AddConfig("ascend910_93", config);
  }

 private:
  // One entry for each combination of the types of input_ids and query_start.
  static constexpr int kCombinations = 4;

  static OpParamDef& Declare(OpParamDef& parameter, std::vector<ge::DataType> types) {
    const std::vector<ge::Format> formats(kCombinations, ge::FORMAT_ND);
    return parameter.ParamType(REQUIRED)
        .DataType(std::move(types))
        .Format(formats)
        .UnknownShapeFormat(formats);
  }
  static OpParamDef& Declare(OpParamDef& parameter, ge::DataType type) {
    return Declare(parameter, std::vector<ge::DataType>(kCombinations, type));
  }
};

OP_ADD(DraftBatch);

}  // namespace ops
