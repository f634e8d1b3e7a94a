// SPDX-License-Identifier: Apache-2.0
// Runs an op's host functions under the stub, from lines on stdin to lines on stdout.
//   in:  input NAME DATA_TYPE TENSORS DIMENSIONS...   in any order
//        attribute NAME VALUE
//   out: inputs NAMES..., outputs NAMES..., shape DIMENSIONS..., tiling HEX or refused WHY
#pragma once

#include <iostream>
#include <map>
#include <sstream>

#include "log/ops_log.h"
#include "register/op_def_registry.h"

struct GivenInput {
  int type = 0;
  size_t tensors = 0;
  gert::Shape shape;
};

struct Given {
  std::map<std::string, GivenInput> inputs;
  std::map<std::string, int64_t> attributes;
};

inline Given ReadGiven() {
  Given given;
  std::string line, kind, name;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    words >> kind >> name;
    if (kind == "attribute") {
      words >> given.attributes[name];
      continue;
    }
    GivenInput& input = given.inputs[name];
    words >> input.type >> input.tensors;
    std::vector<int64_t> dimensions;
    for (int64_t value; words >> value;) dimensions.push_back(value);
    input.shape.SetDimNum(dimensions.size());
    for (size_t i = 0; i < dimensions.size(); i++) input.shape.SetDim(i, dimensions[i]);
  }
  return given;
}

// Inputs and attributes in the order of the definition, as CANN passes them.
inline void Fill(gert::Context& context, const ops::OpDef& definition, const Given& given) {
  for (const auto& input : definition.inputs) {
    const GivenInput& tensor = given.inputs.at(input.name);
    gert::AnchorInstanceInfo info;
    info.first = context.shapes.size();
    info.count = tensor.tensors;
    context.inputs.push_back(info);
    for (size_t i = 0; i < tensor.tensors; i++) {
      context.shapes.emplace_back();
      context.shapes.back().shape = tensor.shape;
      context.types.emplace_back();
      context.types.back().type = static_cast<ge::DataType>(tensor.type);
    }
  }
  for (const auto& attribute : definition.attributes) {
    context.attributes.values.push_back(given.attributes.at(attribute.name));
  }
}

template <typename TilingData>
int RunHost(const ops::OpDef& definition, const gert::Registered& infer,
            const gert::Registered& tiling, size_t output_tensors) {
  const Given given = ReadGiven();
  gert::InferShapeContext shapes;
  gert::InferDataTypeContext types;
  gert::TilingContext launch;
  TilingData data = {};
  launch.tiling = &data;
  shapes.outputs.resize(output_tensors);
  types.outputs.resize(output_tensors);
  Fill(shapes, definition, given);
  Fill(types, definition, given);
  Fill(launch, definition, given);
  std::cout << "inputs";
  for (const auto& input : definition.inputs) std::cout << " " << input.name;
  std::cout << "\noutputs";
  for (const auto& output : definition.outputs) std::cout << " " << output.name;
  if (infer.infer_shape(&shapes) || infer.infer_type(&types)) return 2;
  for (size_t i = 0; i < output_tensors; i++) {
    std::cout << "\nshape " << types.outputs[i];
    for (size_t d = 0; d < shapes.outputs[i].GetDimNum(); d++) {
      std::cout << " " << shapes.outputs[i].GetDim(d);
    }
  }
  if (tiling.tiling(&launch)) {
    std::cout << "\nrefused " << logged << "\n";
    return 0;
  }
  std::cout << "\ntiling ";
  const auto* bytes = reinterpret_cast<const uint8_t*>(&data);
  std::cout << std::hex;
  for (size_t i = 0; i < sizeof(data); i++) std::cout << bytes[i] / 16 << bytes[i] % 16;
  std::cout << "\n";
  return launch.block_dim == data.coreCount ? 0 : 3;
}
