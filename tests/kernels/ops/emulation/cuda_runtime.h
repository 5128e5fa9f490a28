// The launch model of CUDA on the host, for kernels that share nothing between threads: a grid of blocks of threads,
// each of which runs to its end. Threads take their turns in an order that no kernel may rely on.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(threads)

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};
inline thread_local dim3 gridDim, blockDim, blockIdx, threadIdx;

using cudaStream_t = void*;
enum cudaError_t { cudaSuccess, cudaErrorInvalidConfiguration };
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount };

namespace emulated {

// What torch hands out for a device: here the host is the device, and its one stream does everything at once.
struct DeviceGuard {
  explicit DeviceGuard(int) {}
};
inline std::int32_t current_stream(std::int32_t, void** stream) {
  *stream = nullptr;
  return 0;
}

inline cudaError_t last_error = cudaSuccess;

inline unsigned number(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? 1 : static_cast<unsigned>(std::atoi(text));
}

// A cast of an address, which a GPU refuses to read where it is no multiple of what is read.
template <typename To, typename From>
To checked_cast(From* address) {
  if constexpr (std::is_pointer_v<To>) {
    if (reinterpret_cast<std::uintptr_t>(address) % alignof(std::remove_pointer_t<To>) != 0) {
      throw std::runtime_error("misaligned address");
    }
  }
  return reinterpret_cast<To>(address);
}

// Every number below `count` once: down from the end, the even ones first.
inline unsigned turn(unsigned i, unsigned count) {
  const unsigned even = (count + 1) / 2;
  return i < even ? 2 * (even - 1 - i) : 2 * (count - 1 - i) + 1;
}

template <typename F>
void launch(unsigned blocks, unsigned threads, const F& kernel) {
  if (blocks == 0 || threads == 0 || threads > 1024) {
    last_error = cudaErrorInvalidConfiguration;
    return;
  }
  gridDim.x = blocks;
  blockDim.x = threads;
  for (unsigned b = 0; b < blocks; ++b) {
    blockIdx.x = turn(b, blocks);
    for (unsigned t = 0; t < threads; ++t) {
      threadIdx.x = turn(t, threads);
      kernel();
    }
  }
}

}  // namespace emulated

inline cudaError_t cudaGetLastError() {
  const cudaError_t error = emulated::last_error;
  emulated::last_error = cudaSuccess;
  return error;
}
inline const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : "invalid configuration argument";
}
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = static_cast<int>(emulated::number("EMULATED_PROCESSORS"));
  return cudaSuccess;
}
