// A CUDA client that launches an empty kernel at a steady pace, and knows what each launch cost it.
//
//   paced [--rate N] [--sync-every K]
//
// N launches a second, as many as it can without; after every K of them it synchronises. With K = 1 the
// synchronisation is counted in. stdout says ten times a second how many launches there were so far, and how long its
// thread's processor time was within them, all in nanoseconds. SIGTERM ends it.

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

void stop(int) { stopping = 1; }

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

void launch(long long times, bool synchronises) {
  for (long long each = 0; each < times; ++each) {
    nothing<<<1, 1>>>();
    if (synchronises) check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  check(cudaGetLastError(), "launch");
}

// A thousand groups of launches a second, so that to read the clocks costs nothing beside them.
void work(long long rate, long long sync_every) {
  const long long group = rate > 0 ? (sync_every == 1 ? 1 : std::max(1ll, rate / 1000)) : sync_every;
  const Nanoseconds apart = rate > 0 ? group * kSecond / rate : 0;
  long long launches = 0, since_sync = 0;
  Nanoseconds spent = 0, due = read(CLOCK_BOOTTIME), tell = due;
  while (!stopping) {
    const Nanoseconds before = read(CLOCK_THREAD_CPUTIME_ID);
    launch(group, sync_every == 1);
    spent += read(CLOCK_THREAD_CPUTIME_ID) - before;
    launches += group;
    since_sync += group;
    if (sync_every > 1 && since_sync >= sync_every) {
      check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
      since_sync = 0;
    }
    const Nanoseconds now = read(CLOCK_BOOTTIME);
    if (now >= tell) {
      printf("{\"event\": \"count\", \"boot_ns\": %lld, \"launches\": %lld, \"cpu_ns\": %lld}\n", now, launches, spent);
      fflush(stdout);
      tell = now + kTellEvery;
    }
    due = std::max(due + apart, now - kTellEvery);  // what is missed by more is not made up for
    while (apart > 0 && read(CLOCK_BOOTTIME) < due) {
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  static const option known[] = {{"rate", required_argument, nullptr, 'r'},
                                 {"sync-every", required_argument, nullptr, 's'},
                                 {nullptr, 0, nullptr, 0}};
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  long long rate = 0, sync_every = 100;
  for (int key; (key = getopt_long(argc, argv, "", known, nullptr)) != -1;) {
    if (key == 'r') rate = atoll(optarg);
    else if (key == 's') sync_every = atoll(optarg);
    else return 2;
  }
  signal(SIGTERM, stop);
  launch(1, true);
  work(rate, sync_every);
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  return 0;
}
