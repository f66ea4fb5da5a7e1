// How long a client's blocks were on SMs, counted by the blocks themselves.
#pragma once

#include <cuda_runtime.h>

namespace residence {

constexpr int kMostSms = 512;
constexpr int kMostLanes = 64;

// Nanoseconds of one SM, but for `cycles` of its clock. `sum` counts two blocks on one SM twice, `occupied` once.
struct Totals {
  unsigned long long sum;
  unsigned long long occupied;
  unsigned long long cycles;
  unsigned long long blocks;
};

// In the device's memory. A lane is a stream: its launches follow one another.
struct Tally {
  Totals totals;
  unsigned int done[kMostLanes];
  unsigned int present[kMostSms];
  unsigned long long since[kMostSms];
};

__device__ inline unsigned long long nanoseconds_now() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__device__ inline unsigned int this_sm() {
  unsigned int sm;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  return sm;
}

// Only the last block of a launch that publishes writes to the host's memory: it would slow every launch down.
__device__ inline void publish(Tally* tally, volatile Totals* host, int lane) {
  __threadfence();
  if (atomicAdd(&tally->done[lane], 1u) != gridDim.x - 1) return;
  atomicExch(&tally->done[lane], 0u);
  host->sum = atomicAdd(&tally->totals.sum, 0ull);
  host->occupied = atomicAdd(&tally->totals.occupied, 0ull);
  host->cycles = atomicAdd(&tally->totals.cycles, 0ull);
  host->blocks = atomicAdd(&tally->totals.blocks, 0ull);
}

// One thread a block. What comes after `end` is a few stores, so that a block's count is nearly all of its stay.
__global__ void spin(Tally* tally, volatile Totals* host, unsigned long long nanoseconds, int lane, bool publishes) {
  const unsigned long long start = nanoseconds_now();
  const long long first_cycle = clock64();
  const unsigned int sm = this_sm() % kMostSms;
  volatile unsigned long long* since = &tally->since[sm];
  if (atomicAdd(&tally->present[sm], 1u) == 0) *since = start;
  while (nanoseconds_now() - start < nanoseconds) {
  }
  const unsigned long long began = *since;
  const bool last = atomicSub(&tally->present[sm], 1u) == 1;
  const unsigned long long end = nanoseconds_now();
  atomicAdd(&tally->totals.sum, end - start);
  atomicAdd(&tally->totals.cycles, static_cast<unsigned long long>(clock64() - first_cycle));
  atomicAdd(&tally->totals.blocks, 1ull);
  if (last && end > began) atomicAdd(&tally->totals.occupied, end - began);
  if (publishes) publish(tally, host, lane);
}

}  // namespace residence
