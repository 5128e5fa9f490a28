// What both implementations ask of their tensors. Only torch's stable ABI is used, so that one build serves later torch.
#pragma once

#include <string>

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

namespace diagnose {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

inline bool same_layout(const Tensor& a, const Tensor& b) {
  if (a.dim() != b.dim()) {
    return false;
  }
  for (int64_t d = 0; d < a.dim(); ++d) {
    if (a.size(d) != b.size(d) || a.stride(d) != b.stride(d)) {
      return false;
    }
  }
  return true;
}

// `x` with the strides of `layout`, which is dense: itself where it has them, else a copy.
inline Tensor laid_out(const Tensor& x, const Tensor& layout) {
  if (same_layout(x, layout)) {
    return x;
  }
  Tensor copy = torch::stable::empty_like(layout);
  torch::stable::copy_(copy, x);
  return copy;
}

inline void check_pair(const char* name, const Tensor& grad, const Tensor& x) {
  STD_TORCH_CHECK(grad.scalar_type() == x.scalar_type(), name, " needs grad in the dtype of x.");
  STD_TORCH_CHECK(grad.device() == x.device(), name, " needs grad on the device of x.");
  bool same = grad.dim() == x.dim();
  for (int64_t d = 0; same && d < x.dim(); ++d) {
    same = grad.size(d) == x.size(d);
  }
  STD_TORCH_CHECK(same, name, " needs grad in the shape of x.");
}

}  // namespace diagnose
