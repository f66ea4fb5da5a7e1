// A CUDA client that launches an empty kernel at a steady pace, and knows what each launch cost it.
//
//   paced [--rate N] [--sync-every K] [--work-us M]
//
// N launches a second, as many as it can without; after every K of them it synchronises. With K = 1 the
// synchronisation is counted in. Before each launch it computes for M microseconds, as measured at its start. Ten
// times a second it prints the number of launches so far, and the nanoseconds of its thread's processor time in
// them. It pauses from SIGUSR1 to SIGUSR2. SIGTERM ends it.

#include <cuda_runtime.h>
#include <getopt.h>
#include <signal.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace {

using Nanoseconds = long long;

constexpr Nanoseconds kTellEvery = 100'000'000;
constexpr Nanoseconds kSecond = 1'000'000'000;

volatile sig_atomic_t stopping = 0;
volatile sig_atomic_t paused = 0;

void stop(int) { stopping = 1; }
void pause_or_go_on(int number) { paused = number == SIGUSR1; }

Nanoseconds read(clockid_t clock) {
  timespec read;
  clock_gettime(clock, &read);
  return read.tv_sec * kSecond + read.tv_nsec;
}

void check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  printf("{\"event\": \"error\", \"call\": \"%s\", \"name\": \"%s\"}\n", call, cudaGetErrorName(error));
  fflush(stdout);
  _exit(10);
}

__global__ void nothing() {}

void compute(long long iterations) {
  for (volatile long long each = 0; each < iterations; ++each) {
  }
}

long long iterations_in(double us) {
  constexpr long long kTried = 20'000'000;
  const Nanoseconds before = read(CLOCK_THREAD_CPUTIME_ID);
  compute(kTried);
  return static_cast<long long>(us * 1e3 * kTried / (read(CLOCK_THREAD_CPUTIME_ID) - before));
}

void launch(long long times, bool synchronises, long long iterations = 0) {
  for (long long each = 0; each < times; ++each) {
    compute(iterations);
    nothing<<<1, 1>>>();
    if (synchronises) check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  check(cudaGetLastError(), "launch");
}

// A thousand groups of launches a second, so that to read the clocks costs nothing beside them.
void work(long long rate, long long sync_every, long long iterations) {
  const long long group = rate > 0 ? (sync_every == 1 ? 1 : std::max(1ll, rate / 1000)) : sync_every;
  const Nanoseconds apart = rate > 0 ? group * kSecond / rate : 0;
  long long launches = 0, since_sync = 0;
  Nanoseconds spent = 0, due = read(CLOCK_BOOTTIME), tell = due;
  while (!stopping) {
    const Nanoseconds before = read(CLOCK_THREAD_CPUTIME_ID);
    launch(group, sync_every == 1, iterations);
    spent += read(CLOCK_THREAD_CPUTIME_ID) - before;
    launches += group;
    since_sync += group;
    if (sync_every > 1 && since_sync >= sync_every) {
      check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
      since_sync = 0;
    }
    const Nanoseconds now = read(CLOCK_BOOTTIME);
    const bool pauses = paused;
    if (now >= tell || pauses) {
      printf("{\"event\": \"count\", \"boot_ns\": %lld, \"launches\": %lld, \"cpu_ns\": %lld}\n", now, launches, spent);
      fflush(stdout);
      tell = now + kTellEvery;
    }
    while (pauses && paused && !stopping) usleep(1000);
    if (pauses) tell = 0;
    due = std::max(due + apart, now - kTellEvery);  // what is missed by more is not made up for
    while (apart > 0 && read(CLOCK_BOOTTIME) < due) {
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  static const option known[] = {{"rate", required_argument, nullptr, 'r'},
                                 {"sync-every", required_argument, nullptr, 's'},
                                 {"work-us", required_argument, nullptr, 'w'},
                                 {nullptr, 0, nullptr, 0}};
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  long long rate = 0, sync_every = 100;
  double work_us = 0;
  for (int key; (key = getopt_long(argc, argv, "", known, nullptr)) != -1;) {
    if (key == 'r') rate = atoll(optarg);
    else if (key == 's') sync_every = atoll(optarg);
    else if (key == 'w') work_us = atof(optarg);
    else return 2;
  }
  signal(SIGTERM, stop);
  signal(SIGUSR1, pause_or_go_on);
  signal(SIGUSR2, pause_or_go_on);
  launch(1, true);
  work(rate, sync_every, work_us > 0 ? iterations_in(work_us) : 0);
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  return 0;
}
