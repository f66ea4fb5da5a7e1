// The ways in which a client of `load.cu` does harm, to itself or to its neighbours.
#pragma once

#include <cuda_runtime.h>
#include <signal.h>
#include <unistd.h>

#include <cassert>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "clocks.h"
#include "work.cuh"

namespace harm {

__global__ void write_to(volatile int* where) { *where = 1; }
__global__ void read_from(const volatile int* where) { (void)*where; }
__global__ void jump_to(void (*where)()) { where(); }
__global__ void trap() { __trap(); }
__global__ void assert_falsely(int truth) { assert(truth == 1); }

// No process has a mapping there: it is far below the terabyte in which Linux puts them at random. At an address within it,
// a range of another client can be near by chance. (A terabyte beyond null raised no error on an H200.)
constexpr unsigned long long kNowhere = 0x7e0000000000ULL;

inline void write_out_of_bounds() { write_to<<<1, 1>>>(reinterpret_cast<int*>(kNowhere)); }
inline void read_out_of_bounds() { read_from<<<1, 1>>>(reinterpret_cast<int*>(kNowhere)); }
inline void jump_out_of_bounds() { jump_to<<<1, 1>>>(reinterpret_cast<void (*)()>(kNowhere)); }

inline void write_to_null() { write_to<<<1, 1>>>(nullptr); }

inline void write_misaligned() {
  char* memory = nullptr;
  cudaMalloc(&memory, 64);
  write_to<<<1, 1>>>(reinterpret_cast<int*>(memory + 1));
}

inline void trap_kernel() { trap<<<1, 1>>>(); }
inline void assert_kernel() { assert_falsely<<<1, 1>>>(0); }
inline void die_of_segv() { raise(SIGSEGV); }
inline void exit_well() { exit(0); }
inline void exit_at_once() { _exit(0); }

// `busy`: a kernel is in flight while it is done.
struct Kind {
  const char* name;
  bool busy;
  void (*act)();
};

constexpr Kind kKinds[] = {{"oob", false, write_out_of_bounds}, {"oob-read", false, read_out_of_bounds},
                           {"jump", false, jump_out_of_bounds}, {"null", false, write_to_null},
                           {"misaligned", false, write_misaligned}, {"trap", false, trap_kernel},
                           {"assert", false, assert_kernel}, {"abort", false, abort},
                           {"abort-busy", true, abort}, {"segv-busy", true, die_of_segv},
                           {"exit-busy", true, exit_well}, {"_exit-busy", true, exit_at_once}};

inline const Kind* find(const char* name) {
  for (const Kind& kind : kKinds) {
    if (strcmp(kind.name, name) == 0) return &kind;
  }
  return nullptr;
}

// Long enough to be still in flight when the process has ended.
constexpr double kInFlightSeconds = 1;
constexpr useconds_t kSettleMicroseconds = 20000;

inline void act(const Kind& kind) {
  if (kind.busy) {
    work::spin_kernel<<<1, 1>>>(static_cast<unsigned long long>(kInFlightSeconds * 1e9));
    usleep(kSettleMicroseconds);
  }
  printf("{\"event\": \"fault\", \"kind\": \"%s\", \"at\": %.6f}\n", kind.name, wall());
  fflush(stdout);
  kind.act();
}

}  // namespace harm
