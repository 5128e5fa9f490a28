// The formulas of the pointwise operators, for the CPU and for CUDA alike; what is calculated in is float, or double.
// Each is called with two numbers, of which it reads the second only where kPair says so.
#pragma once

#include <cmath>

#ifdef __CUDACC__
#define DIAGNOSE_FN __host__ __device__ __forceinline__
#else
#define DIAGNOSE_FN inline
#endif

namespace diagnose {

// y = factor x
struct Scale {
  static constexpr bool kPair = false;
  double factor;
  template <typename C>
  DIAGNOSE_FN C operator()(C x, C) const {
    return x * static_cast<C>(factor);
  }
};

template <typename C>
DIAGNOSE_FN C tanh_gate(C x) {
  // (1 + tanh u) / 2 = 1 / (1 + exp(-2u)), which loses no digits where tanh u nears -1
  return C(1) / (C(1) + exp(-C(1.5957691216057308) * x * (C(1) + C(0.044715) * x * x)));
}

template <typename C>
DIAGNOSE_FN C normal_share(C x) {
  return C(0.5) * (C(1) + erf(x * C(0.7071067811865476)));
}

// y = x Phi(x), or its tanh form
struct Gelu {
  static constexpr bool kPair = false;
  bool tanh_form;
  template <typename C>
  DIAGNOSE_FN C operator()(C x, C) const {
    return x * (tanh_form ? tanh_gate(x) : normal_share(x));
  }
};

// dx = dy (Phi(x) + x phi(x)), or the tanh form's derivative; called with x first
struct GeluBackward {
  static constexpr bool kPair = true;
  bool tanh_form;
  template <typename C>
  DIAGNOSE_FN C operator()(C x, C grad) const {
    if (tanh_form) {
      const C s = tanh_gate(x);
      const C rest = tanh_gate(-x);  // 1 - s, of which the subtraction would lose digits
      return grad * (s + x * s * rest * C(1.5957691216057308) * (C(1) + C(0.134145) * x * x));
    }
    return grad * (normal_share(x) + x * C(0.3989422804014327) * exp(C(-0.5) * x * x));
  }
};

}  // namespace diagnose
