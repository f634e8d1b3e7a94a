// SPDX-License-Identifier: Apache-2.0
// The part of CANN's host API that our op_host files name, declared and hardly defined: enough to
// compile them and to call what they register. Signatures as in CANN 8.1; no code of it is here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <utility>
#include <vector>

namespace ge {
enum DataType { DT_FLOAT, DT_FLOAT16, DT_BF16, DT_INT32, DT_INT64, DT_BOOL };
enum Format { FORMAT_ND };
using graphStatus = uint32_t;
constexpr graphStatus GRAPH_SUCCESS = 0, GRAPH_FAILED = 1;
inline int GetSizeByDataType(DataType type) {
  const int bytes[] = {4, 2, 2, 4, 8, 1};
  return bytes[type];
}
}  // namespace ge

namespace gert {

class Shape {
 public:
  size_t GetDimNum() const { return dimensions_.size(); }
  int64_t GetDim(size_t at) const { return dimensions_.at(at); }
  void SetDimNum(size_t count) { dimensions_.assign(count, -1); }
  void SetDim(size_t at, int64_t value) { dimensions_.at(at) = value; }
  bool operator==(const Shape& other) const { return dimensions_ == other.dimensions_; }

 private:
  std::vector<int64_t> dimensions_;
};

class StorageShape {
 public:
  const Shape& GetStorageShape() const { return shape; }
  Shape shape;
};

class CompileTimeTensorDesc {
 public:
  ge::DataType GetDataType() const { return type; }
  ge::DataType type = ge::DT_INT64;
};

class AnchorInstanceInfo {
 public:
  size_t GetInstanceNum() const { return count; }
  size_t first = 0, count = 0;
};

class RuntimeAttrs {
 public:
  template <typename T>
  const T* GetAttrPointer(size_t at) const {
    return at < values.size() ? &values[at] : nullptr;
  }
  std::vector<int64_t> values;
};

class TilingData {
 public:
  void* data = nullptr;
};

// Tensors of all inputs in order; `inputs[i]` says which are those of the i-th input.
class Context {
 public:
  const RuntimeAttrs* GetAttrs() const { return &attributes; }
  const AnchorInstanceInfo* GetIrInputInstanceInfo(size_t input) const { return &inputs[input]; }
  const StorageShape* StorageAt(size_t input, size_t i) const {
    if (input >= inputs.size() || i >= inputs[input].count) return nullptr;
    return &shapes[inputs[input].first + i];
  }
  RuntimeAttrs attributes;
  std::vector<AnchorInstanceInfo> inputs;
  std::vector<StorageShape> shapes;
  std::vector<CompileTimeTensorDesc> types;
};

class InferShapeContext : public Context {
 public:
  const Shape* GetInputShape(size_t i) const { return &shapes[i].shape; }
  const Shape* GetDynamicInputShape(size_t input, size_t i) const {
    return &StorageAt(input, i)->shape;
  }
  Shape* GetOutputShape(size_t i) { return i < outputs.size() ? &outputs[i] : nullptr; }
  std::vector<Shape> outputs;
};

class InferDataTypeContext : public Context {
 public:
  ge::DataType GetDynamicInputDataType(size_t input, size_t i) const {
    return types[inputs[input].first + i].type;
  }
  void SetOutputDataType(size_t i, ge::DataType type) { outputs.at(i) = type; }
  std::vector<ge::DataType> outputs;
};

class TilingContext : public Context {
 public:
  const StorageShape* GetInputShape(size_t i) const { return StorageAt(i, 0); }
  const StorageShape* GetDynamicInputShape(size_t input, size_t i) const {
    return StorageAt(input, i);
  }
  const CompileTimeTensorDesc* GetInputDesc(size_t i) const { return GetDynamicInputDesc(i, 0); }
  const CompileTimeTensorDesc* GetDynamicInputDesc(size_t input, size_t i) const {
    return &types[inputs[input].first + i];
  }
  template <typename T>
  T* GetTilingData() {
    return static_cast<T*>(tiling);
  }
  const void* GetPlatformInfo() const { return this; }
  size_t* GetWorkspaceSizes(size_t) { return &workspace; }
  void SetBlockDim(uint32_t cores) { block_dim = cores; }
  void SetTilingKey(uint64_t) {}
  void* tiling = nullptr;
  size_t workspace = 1;
  uint32_t block_dim = 0;
};

class TilingParseContext {};

// What an op_host file registers.
struct Registered {
  ge::graphStatus (*infer_shape)(InferShapeContext*) = nullptr;
  ge::graphStatus (*infer_type)(InferDataTypeContext*) = nullptr;
  ge::graphStatus (*tiling)(TilingContext*) = nullptr;
  Registered& InferShape(ge::graphStatus (*function)(InferShapeContext*)) {
    return infer_shape = function, *this;
  }
  Registered& InferDataType(ge::graphStatus (*function)(InferDataTypeContext*)) {
    return infer_type = function, *this;
  }
  Registered& Tiling(ge::graphStatus (*function)(TilingContext*)) {
    return tiling = function, *this;
  }
  template <typename CompileInfo>
  Registered& TilingParse(ge::graphStatus (*)(TilingParseContext*)) {
    return *this;
  }
};

}  // namespace gert

#define IMPL_OP_INFERSHAPE(op) static gert::Registered infershape_of_##op = gert::Registered()
#define IMPL_OP_OPTILING(op) static gert::Registered tiling_of_##op = gert::Registered()
