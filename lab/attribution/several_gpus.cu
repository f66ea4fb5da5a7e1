// A CUDA client that works on one to eight GPUs, and counts its launches on each.
//
//   several_gpus [--one-thread] [--visible=GPUS] BLOCKS:US:EVERY_US...
//
// On each of its devices, in their order, it launches a kernel that runs for US microseconds on BLOCKS SMs, every
// EVERY_US microseconds, and waits for it: by a thread for each device, or by one thread that changes its device. Ten
// times a second stdout has the time (CLOCK_BOOTTIME in ns) and the number of launches on each device. SIGTERM ends it.
// With --visible it sets CUDA_VISIBLE_DEVICES in its process before it uses CUDA, as Ray does. On a device with 0 BLOCKS
// it does nothing, so that 0:0:0 first is a client that calls cudaSetDevice(1) only.

#include <cuda_runtime.h>
#include <signal.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace {

constexpr int kMostDevices = 8;
constexpr size_t kSharedBytes = 120 << 10;  // one block on each SM
constexpr long long kReportEvery = 100'000'000;

struct Load {
  int blocks;
  double us;
  double every_us;
};

volatile sig_atomic_t stopping = 0;
std::atomic<long long> launches[kMostDevices];

void stop(int) { stopping = 1; }

long long now() {
  timespec read;
  clock_gettime(CLOCK_BOOTTIME, &read);
  return read.tv_sec * 1'000'000'000ll + read.tv_nsec;
}

void sleep_until(long long due) {
  const long long left = due - now();
  if (left > 0) usleep(static_cast<useconds_t>(left / 1000));
}

void check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  fprintf(stderr, "%s: %s\n", call, cudaGetErrorName(error));
  _exit(10);
}

__global__ void spin(unsigned long long nanoseconds) {
  unsigned long long start, read;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(read));
  } while (read - start < nanoseconds);
}

void launch(const Load& load) {
  spin<<<load.blocks, 1, kSharedBytes>>>(static_cast<unsigned long long>(load.us * 1e3));
  check(cudaGetLastError(), "launch");
}

void wait(int device) {
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  launches[device] += 1;
}

void choose(int device) { check(cudaSetDevice(device), "cudaSetDevice"); }

void work(const std::vector<Load>& loads, int first, int last) {
  choose(first);
  for (int device = first; device <= last; ++device) {
    if (first != last) choose(device);
    check(cudaFuncSetAttribute(spin, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes), "cudaFuncSetAttribute");
  }
  for (long long due = now(); !stopping; sleep_until(due)) {
    for (int device = first; device <= last; ++device) {
      if (first != last) choose(device);
      launch(loads[device]);
    }
    for (int device = first; device <= last; ++device) {
      if (first != last) choose(device);
      wait(device);
    }
    due = std::max(due + static_cast<long long>(loads[first].every_us * 1e3), now() - kReportEvery);
  }
}

}  // namespace

int main(int argc, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  signal(SIGTERM, stop);
  bool one_thread = false;
  std::vector<Load> loads;
  for (int each = 1; each < argc; ++each) {
    Load load;
    if (strcmp(argv[each], "--one-thread") == 0) one_thread = true;
    else if (strncmp(argv[each], "--visible=", 10) == 0) setenv("CUDA_VISIBLE_DEVICES", argv[each] + 10, 1);
    else if (sscanf(argv[each], "%d:%lf:%lf", &load.blocks, &load.us, &load.every_us) == 3) loads.push_back(load);
    else return 2;
  }
  const int last = static_cast<int>(loads.size()) - 1;
  if (last < 0 || last >= kMostDevices) return 2;
  std::vector<std::thread> threads;
  if (one_thread) threads.emplace_back(work, loads, 0, last);
  else
    for (int device = 0; device <= last; ++device)
      if (loads[device].blocks > 0) threads.emplace_back(work, loads, device, device);
  for (long long due = now(); !stopping; sleep_until(due += kReportEvery)) {
    printf("%lld", now());
    for (int device = 0; device <= last; ++device) printf(" %lld", launches[device].load());
    puts("");
    fflush(stdout);
  }
  for (std::thread& thread : threads) thread.join();
  return 0;
}
