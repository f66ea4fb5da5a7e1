// Launches a kernel over and over, each time waiting for it, and counts what it did in a file of 8 bytes.
//
//   launches FILE ROUNDS
//
// Each thread of the kernel multiplies and adds so many ROUNDS times: some 2 ns each on an H200. With few of them, what is
// counted is how fast the CPU launches; with many, how fast the GPU works.
//
// The file is there already. Whoever maps it reads the count at any time. SIGTERM ends it.

#include <cuda_runtime.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace {

volatile sig_atomic_t stopping = 0;

void stop(int) { stopping = 1; }

__global__ void work(float* numbers, int rounds) {
  const int index = blockIdx.x * blockDim.x + threadIdx.x;
  float number = numbers[index];
  for (int round = 0; round < rounds; ++round) number = number * 0.999F + 1.0F;
  numbers[index] = number;
}

constexpr int kBlocks = 8, kThreads = 128;

bool failed(const char* call, cudaError_t error) {
  if (error != cudaSuccess) fprintf(stderr, "%s: %s\n", call, cudaGetErrorName(error));
  return error != cudaSuccess;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const int rounds = atoi(argv[2]);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  signal(SIGTERM, stop);
  const int file = open(argv[1], O_RDWR);
  void* mapped = mmap(nullptr, sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (file < 0 || mapped == MAP_FAILED) return 3;
  auto* count = static_cast<std::atomic<uint64_t>*>(mapped);
  float* numbers = nullptr;
  if (failed("cudaMalloc", cudaMalloc(&numbers, kBlocks * kThreads * sizeof(float)))) return 4;
  while (!stopping) {
    work<<<kBlocks, kThreads>>>(numbers, rounds);
    if (failed("cudaDeviceSynchronize", cudaDeviceSynchronize())) return 5;
    count->fetch_add(1, std::memory_order_relaxed);
  }
  return 0;
}
