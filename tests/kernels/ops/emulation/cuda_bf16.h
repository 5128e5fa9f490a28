// bfloat16 as CUDA has it, by torch's own type.
#pragma once

#include <torch/headeronly/util/BFloat16.h>

struct __nv_bfloat16 {
  torch::headeronly::BFloat16 value;
};
inline float __bfloat162float(__nv_bfloat16 x) { return static_cast<float>(x.value); }
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return {torch::headeronly::BFloat16(x)}; }
