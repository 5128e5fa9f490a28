// The schemas, and the implementations for the CPU.

#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include "pointwise.h"
#include "tensors.h"

namespace diagnose {
namespace {

constexpr int64_t kGrain = 32768;  // elements of one thread at least, as torch's own loops have it

template <typename T, typename C, typename F>
void loop(const Tensor& x, const Tensor& other, Tensor& out, const F& formula) {
  const T* first = static_cast<const T*>(x.const_data_ptr());
  const T* second = static_cast<const T*>(other.const_data_ptr());
  T* result = static_cast<T*>(out.mutable_data_ptr());
  torch::stable::parallel_for(0, out.numel(), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      result[i] = static_cast<T>(formula(static_cast<C>(first[i]), static_cast<C>(second[i])));
    }
  });
}

template <typename F>
Tensor pointwise(const char* name, const Tensor& x, const Tensor& other, const F& formula) {
  Tensor out = torch::stable::empty_like(x);
  const Tensor first = laid_out(x, out);
  const Tensor second = laid_out(other, out);
  switch (x.scalar_type()) {
    case ScalarType::Float:
      loop<float, float>(first, second, out, formula);
      break;
    case ScalarType::Double:
      loop<double, double>(first, second, out, formula);
      break;
    case ScalarType::Half:
      loop<torch::headeronly::Half, float>(first, second, out, formula);
      break;
    case ScalarType::BFloat16:
      loop<torch::headeronly::BFloat16, float>(first, second, out, formula);
      break;
    default:
      STD_TORCH_CHECK(false, name, " needs x in float32, float64, float16 or bfloat16.");
  }
  return out;
}

Tensor scale(Tensor x, double factor) {
  return pointwise("scale", x, x, Scale{factor});
}

Tensor gelu(Tensor x, bool tanh_form) {
  return pointwise("gelu", x, x, Gelu{tanh_form});
}

Tensor gelu_backward(Tensor grad, Tensor x, bool tanh_form) {
  check_pair("gelu_backward", grad, x);
  return pointwise("gelu_backward", x, grad, GeluBackward{tanh_form});
}

}  // namespace

STABLE_TORCH_LIBRARY(diagnose_native, m) {
  m.def("scale(Tensor x, float factor) -> Tensor");
  m.def("gelu(Tensor x, bool tanh_form) -> Tensor");
  m.def("gelu_backward(Tensor grad, Tensor x, bool tanh_form) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(diagnose_native, CPU, m) {
  m.impl("scale", TORCH_BOX(&scale));
  m.impl("gelu", TORCH_BOX(&gelu));
  m.impl("gelu_backward", TORCH_BOX(&gelu_backward));
}

}  // namespace diagnose
