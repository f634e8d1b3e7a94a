// SPDX-License-Identifier: Apache-2.0
// Inputs, outputs and attributes of tree_build; B requests, C candidates, R = M + 1 rows.
#include "register/op_def_registry.h"

namespace ops {

class TreeBuild : public OpDef {
 public:
  explicit TreeBuild(const char* name) : OpDef(name) {
    Declare(this->Input("root_tokens"), ge::DT_INT64).AutoContiguous();  // [B]
    Declare(this->Input("tokens"), ge::DT_INT64).AutoContiguous();       // [B, C]
    Declare(this->Input("scores"), ge::DT_FLOAT).AutoContiguous();       // [B, C]
    Declare(this->Input("parents"), ge::DT_INT64).AutoContiguous();      // [B, C]
    for (const char* output : {"tree_tokens", "parent", "depth"}) {      // [B, R]
      Declare(this->Output(output), ge::DT_INT64);
    }
    Declare(this->Output("valid"), ge::DT_BOOL);    // [B, R]
    Declare(this->Output("visible"), ge::DT_BOOL);  // [B, R, R]
    Declare(this->Output("score"), ge::DT_FLOAT);   // [B, R]
    Declare(this->Output("mask"), ge::DT_INT32);    // [B, R, ceil(R / 32)]
    for (const char* output : {"first_child", "next_sibling"}) {  // [B, R]
      Declare(this->Output(output), ge::DT_INT64);
    }
    for (const char* attribute : {"width", "depth", "nodes"}) {  // W, D, M
      this->Attr(attribute).AttrType(REQUIRED).Int();
    }

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

OP_ADD(TreeBuild);

}  // namespace ops
