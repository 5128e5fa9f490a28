// Half precision as CUDA has it, by torch's own type.
#pragma once

#include <torch/headeronly/util/Half.h>

struct __half {
  torch::headeronly::Half value;
};
inline float __half2float(__half x) { return static_cast<float>(x.value); }
inline __half __float2half_rn(float x) { return {torch::headeronly::Half(x)}; }
