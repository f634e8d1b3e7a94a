// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "op_impl_registry.h"

namespace ops {

enum Option { OPTIONAL, REQUIRED, DYNAMIC };

class OpParamDef {
 public:
  std::string name;
  Option option = OPTIONAL;
  std::vector<ge::DataType> types;
  OpParamDef& ParamType(Option value) { return option = value, *this; }
  OpParamDef& DataType(std::vector<ge::DataType> value) { return types = value, *this; }
  OpParamDef& Format(std::vector<ge::Format>) { return *this; }
  OpParamDef& UnknownShapeFormat(std::vector<ge::Format>) { return *this; }
  OpParamDef& AutoContiguous() { return *this; }
};

class OpAttrDef {
 public:
  std::string name;
  OpAttrDef& AttrType(Option) { return *this; }
  OpAttrDef& Int() { return *this; }
};

class OpAICoreConfig {
 public:
  OpAICoreConfig& DynamicCompileStaticFlag(bool) { return *this; }
  OpAICoreConfig& DynamicFormatFlag(bool) { return *this; }
  OpAICoreConfig& DynamicRankSupportFlag(bool) { return *this; }
  OpAICoreConfig& DynamicShapeSupportFlag(bool) { return *this; }
};

class OpAICoreDef {
 public:
  void AddConfig(const char*, OpAICoreConfig&) {}
};

class OpDef {
 public:
  explicit OpDef(const char*) {}
  OpParamDef& Input(const char* name) { return Add(inputs, name); }
  OpParamDef& Output(const char* name) { return Add(outputs, name); }
  OpAttrDef& Attr(const char* name) { return Add(attributes, name); }
  OpAICoreDef& AICore() { return core; }
  std::vector<OpParamDef> inputs, outputs;
  std::vector<OpAttrDef> attributes;

 private:
  template <typename Def>
  static Def& Add(std::vector<Def>& defs, const char* name) {
    defs.emplace_back();
    defs.back().name = name;
    return defs.back();
  }
  OpAICoreDef core;
};

}  // namespace ops

#define OP_ADD(op) static op definition_of_##op(#op)
