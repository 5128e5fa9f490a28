// The implementations for CUDA: 128 bits at once where alignment allows, 64-bit counting, the current stream.

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <torch/csrc/stable/accelerator.h>

#include "pointwise.h"
#include "tensors.h"

// Of torch's C interface, in builds for CUDA: weak, so that the library loads where torch has no CUDA. The stable ABI
// itself hands the stream out from torch 2.13 on.
extern "C" __attribute__((weak)) int32_t aoti_torch_get_current_cuda_stream(int32_t device, void** stream);

namespace diagnose {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksPerProcessor = 8;  // enough to hide memory's latency; a grid-stride loop does the rest
constexpr int kBytes = 16;  // of the widest read

// Intrinsics, since torch's flags forbid the conversions that casts between half types and float would use.
__device__ __forceinline__ float wide(float x) { return x; }
__device__ __forceinline__ double wide(double x) { return x; }
__device__ __forceinline__ float wide(__half x) { return __half2float(x); }
__device__ __forceinline__ float wide(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ void narrow(float x, float& y) { y = x; }
__device__ __forceinline__ void narrow(double x, double& y) { y = x; }
__device__ __forceinline__ void narrow(float x, __half& y) { y = __float2half_rn(x); }
__device__ __forceinline__ void narrow(float x, __nv_bfloat16& y) { y = __float2bfloat16_rn(x); }

template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
  T values[N];
};

// N elements a thread and turn; the last ones, which fill no pack, one each by the first threads.
template <typename T, int N, typename F>
__global__ void __launch_bounds__(kThreads)
    loop(const T* __restrict__ first, const T* __restrict__ second, T* __restrict__ out, int64_t num, F formula) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  const int64_t packs = num / N;
  for (int64_t i = thread; i < packs; i += stride) {
    const Pack<T, N> a = reinterpret_cast<const Pack<T, N>*>(first)[i];
    const Pack<T, N> b = F::kPair ? reinterpret_cast<const Pack<T, N>*>(second)[i] : a;
    Pack<T, N> y;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      narrow(formula(wide(a.values[k]), wide(b.values[k])), y.values[k]);
    }
    reinterpret_cast<Pack<T, N>*>(out)[i] = y;
  }
  for (int64_t i = packs * N + thread; i < num; i += stride) {
    narrow(formula(wide(first[i]), F::kPair ? wide(second[i]) : wide(first[i])), out[i]);
  }
}

void check(cudaError_t status, const char* name) {
  STD_TORCH_CHECK(status == cudaSuccess, name, " could not be launched: ", cudaGetErrorString(status));
}

cudaStream_t current_stream(int device, const char* name) {
  void* stream = nullptr;
  STD_TORCH_CHECK(
      aoti_torch_get_current_cuda_stream != nullptr && aoti_torch_get_current_cuda_stream(device, &stream) == 0,
      name, " found no current stream; is this torch built for CUDA?");
  return static_cast<cudaStream_t>(stream);
}

bool aligned(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % kBytes == 0;
}

template <typename T, typename F>
void launch(const char* name, const Tensor& x, const Tensor& other, Tensor& out, const F& formula) {
  const int device = out.get_device_index();
  int processors = 0;
  check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), name);
  const cudaStream_t stream = current_stream(device, name);
  const T* first = static_cast<const T*>(x.const_data_ptr());
  const T* second = static_cast<const T*>(other.const_data_ptr());
  T* result = static_cast<T*>(out.mutable_data_ptr());
  constexpr int kPack = kBytes / sizeof(T);
  const bool packed = aligned(first) && aligned(second) && aligned(result);
  const int64_t turns = packed ? (out.numel() + kPack - 1) / kPack : out.numel();
  const int64_t most = static_cast<int64_t>(processors) * kBlocksPerProcessor;
  const int64_t blocks = (turns + kThreads - 1) / kThreads < most ? (turns + kThreads - 1) / kThreads : most;
  if (packed) {
    loop<T, kPack><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(first, second, result, out.numel(), formula);
  } else {
    loop<T, 1><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(first, second, result, out.numel(), formula);
  }
  check(cudaGetLastError(), name);  // of the launch alone: nothing is waited for
}

template <typename F>
Tensor pointwise(const char* name, const Tensor& x, const Tensor& other, const F& formula) {
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  Tensor out = torch::stable::empty_like(x);
  if (out.numel() == 0) {
    return out;
  }
  const Tensor first = laid_out(x, out);
  const Tensor second = laid_out(other, out);
  switch (x.scalar_type()) {
    case ScalarType::Float:
      launch<float>(name, first, second, out, formula);
      break;
    case ScalarType::Double:
      launch<double>(name, first, second, out, formula);
      break;
    case ScalarType::Half:
      launch<__half>(name, first, second, out, formula);
      break;
    case ScalarType::BFloat16:
      launch<__nv_bfloat16>(name, first, second, out, formula);
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

STABLE_TORCH_LIBRARY_IMPL(diagnose_native, CUDA, m) {
  m.impl("scale", TORCH_BOX(&scale));
  m.impl("gelu", TORCH_BOX(&gelu));
  m.impl("gelu_backward", TORCH_BOX(&gelu_backward));
}

}  // namespace diagnose
