// What a client of `load.cu` does with a device.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>

namespace work {

__device__ unsigned long long nanoseconds_now() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__global__ void spin_kernel(unsigned long long nanoseconds) {
  const unsigned long long start = nanoseconds_now();
  while (nanoseconds_now() - start < nanoseconds) {
  }
}

__global__ void churn_kernel(volatile int* memory, size_t words, unsigned long long nanoseconds) {
  const unsigned long long start = nanoseconds_now();
  for (size_t at = blockIdx.x * blockDim.x + threadIdx.x; nanoseconds_now() - start < nanoseconds; at += 4099) {
    memory[at % words] += 1;
  }
}

struct Device {
  int ordinal = 0;
  size_t bytes = 0;
  void* memory = nullptr;
  void* host = nullptr;
};

using Doing = void (*)(Device&, double milliseconds);

inline unsigned long long nanoseconds(double milliseconds) {
  return static_cast<unsigned long long>(milliseconds * 1e6);
}

// One thread, which touches no memory.
inline void spin(Device&, double milliseconds) { spin_kernel<<<1, 1>>>(nanoseconds(milliseconds)); }

// Many threads, each with a load or a store under way at any time. Wants --mib.
inline void churn(Device& device, double milliseconds) {
  churn_kernel<<<16, 256>>>(static_cast<int*>(device.memory), device.bytes / sizeof(int), nanoseconds(milliseconds));
}

// Copies to the host, about as many as take so long, and no kernel. Wants --mib.
inline void copy(Device& device, double milliseconds) {
  constexpr double kBytesPerMillisecond = 50e6;
  if (!device.host) cudaMallocHost(&device.host, device.bytes);
  const int copies = std::max(1, static_cast<int>(milliseconds * kBytesPerMillisecond / device.bytes));
  for (int each = 0; each < copies; ++each) {
    cudaMemcpyAsync(device.host, device.memory, device.bytes, cudaMemcpyDeviceToHost);
  }
}

inline Doing find(const char* name) {
  if (strcmp(name, "spin") == 0) return spin;
  if (strcmp(name, "churn") == 0) return churn;
  if (strcmp(name, "copy") == 0) return copy;
  return nullptr;
}

}  // namespace work
