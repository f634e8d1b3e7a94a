// SPDX-License-Identifier: Apache-2.0
// Inputs, outputs and attributes of tree_accept; B requests, R rows, D depth.
#include "register/op_def_registry.h"

namespace ops {

class TreeAccept : public OpDef {
 public:
  explicit TreeAccept(const char* name) : OpDef(name) {
    for (const char* input : {"tokens", "parent"}) {  // [B, R]
      Declare(this->Input(input), ge::DT_INT64).AutoContiguous();
    }
    Declare(this->Input("valid"), ge::DT_BOOL).AutoContiguous();   // [B, R]
    Declare(this->Input("draws"), ge::DT_INT64).AutoContiguous();  // [B, R]
    Declare(this->Output("rows"), ge::DT_INT64);                   // [B, D + 1]
    Declare(this->Output("length"), ge::DT_INT64);                 // [B]
    Declare(this->Output("output"), ge::DT_INT64);                 // [B, D + 1]
    this->Attr("depth").AttrType(REQUIRED).Int();

    OpAICoreConfig config;
    config.DynamicCompileStaticFlag(true)
        .DynamicFormatFlag(false)
        .DynamicRankSupportFlag(true)
        .DynamicShapeSupportFlag(true);
    this->AICore().AddConfig("ascend910b", config);
    this->AICore().AddConfig("ascend910_93", config);
  }

 private:
  static OpParamDef& Declare(OpParamDef& parameter, ge::DataType type) {
    return parameter.ParamType(REQUIRED)
        .DataType({type})
        .Format({ge::FORMAT_ND})
        .UnknownShapeFormat({ge::FORMAT_ND});
  }
};

OP_ADD(TreeAccept);

}  // namespace ops
