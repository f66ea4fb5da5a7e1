// What a client of `load.cu` may use of its device: MPS' limits, as a client meets them.
#pragma once

#include <cuda_runtime.h>
#include <dlfcn.h>

namespace means {

// The SMs it is given: under a limit on threads, fewer than there are. By the driver's own word, for which a device is
// its ordinal.
inline int processors(int ordinal) {
  constexpr int kMultiprocessorCount = 16;
  using GetAttribute = int (*)(int*, int, int);
  const auto get = reinterpret_cast<GetAttribute>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuDeviceGetAttribute"));
  int count = 0;
  get(&count, kMultiprocessorCount, ordinal);
  return count;
}

// Whether so much memory more is to be had. It is given back.
inline bool grants(size_t bytes) {
  void* memory = nullptr;
  const bool granted = cudaMalloc(&memory, bytes) == cudaSuccess;
  cudaFree(memory);
  cudaGetLastError();
  return granted;
}

}  // namespace means
