// What a client of `load.cu` may use of its device: MPS' limits, as a client meets them.
#pragma once

#include <cuda_runtime.h>

namespace means {

// The SMs it is given: under a limit on threads, fewer than there are.
inline int processors(int ordinal) {
  int count = 0;
  cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, ordinal);
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
