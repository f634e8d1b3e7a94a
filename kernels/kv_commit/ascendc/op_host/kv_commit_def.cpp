// SPDX-License-Identifier: Apache-2.0
// Inputs, outputs and attributes of kv_commit:
// B requests, R rows, L layers, X scratch rows, Hk heads of K elements.
#include <utility>
#include <vector>

#include "register/op_def_registry.h"

namespace ops {

class KvCommit : public OpDef {
 public:
  explicit KvCommit(const char* name) : OpDef(name) {
    const std::vector<ge::DataType> index(3, ge::DT_INT64);
    const std::vector<ge::DataType> data = {ge::DT_FLOAT16, ge::DT_BF16, ge::DT_FLOAT};
    Declare(this->Input("path_rows"), REQUIRED, index).AutoContiguous();     // [B, D + 1]
    Declare(this->Input("linear_slots"), REQUIRED, index).AutoContiguous();  // [B, R]
    for (const char* input : {"key_scratch", "value_scratch"}) {  // L of [X, Hk, K]
      Declare(this->Input(input), DYNAMIC, data).AutoContiguous();
    }
    // L of [blocks, block size, Hk, K]. An output of an input's name is that input, in place.
    for (const char* cache : {"key_cache", "value_cache"}) {
      Declare(this->Input(cache), DYNAMIC, data);
    }
    Declare(this->Output("slots"), REQUIRED, index);  // [B, R]
    for (const char* cache : {"key_cache", "value_cache"}) {
      Declare(this->Output(cache), DYNAMIC, data);
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
  // One entry for each type of keys and values; rows are copied as bytes.
  static OpParamDef& Declare(OpParamDef& parameter, Option option,
                             std::vector<ge::DataType> types) {
    const std::vector<ge::Format> formats(types.size(), ge::FORMAT_ND);
    return parameter.ParamType(option)
        .DataType(std::move(types))
        .Format(formats)
        .UnknownShapeFormat(formats);
  }
};

OP_ADD(KvCommit);

}  // namespace ops
