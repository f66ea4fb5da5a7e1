// A CUDA client that knows its own SM time. stdout says what it is, and ten times a second how much that was so far.
//
//   known [--blocks N] [--us M] [--batch B] [--every-us P | --pause-us P] [--burst-ms M --rest-ms M] [--streams S]
//         [--threads T] [--sync device|stream|event|query|never] [--shared-kib K] [--graph] [--seconds S]
//         [--then-us M --then-every-us P]
//
// Each of its threads takes turns: in a turn it launches B kernels of N blocks, each of which spins for M microseconds,
// on its S streams in rotation, and then synchronises. Turns begin every P microseconds, or that long after the last.
// With --burst-ms it works for so long, and then rests. A block takes K KiB of an SM's memory. With --graph a turn's
// launches are one graph's. From SIGUSR1 on, kernels are as long and turns begin as --then-* says. SIGTERM ends it. Times are nanoseconds of CLOCK_BOOTTIME.

#include <cuda_runtime.h>
#include <getopt.h>
#include <signal.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "residence.cuh"

namespace {

using Nanoseconds = long long;

struct Options {
  int blocks = 1;
  double us = 100;
  int batch = 1;
  double every_us = 0;
  double pause_us = 0;
  double then_us = 0;
  double then_every_us = 0;
  double burst_ms = 0;
  double rest_ms = 0;
  int streams = 1;
  int threads = 1;
  std::string sync = "device";
  int shared_kib = 0;
  bool graph = false;
  double seconds = 3600;
};

constexpr Nanoseconds kPublishEvery = 5'000'000;
constexpr Nanoseconds kTellEvery = 100'000'000;
constexpr Nanoseconds kShortestSleep = 80'000;

volatile sig_atomic_t stopping = 0;
volatile sig_atomic_t changed = 0;
std::atomic<long long> launches{0};
std::atomic<long long> turns{0};
residence::Tally* tally = nullptr;
volatile residence::Totals* host = nullptr;

void stop(int) { stopping = 1; }
void change(int) { changed = 1; }

Nanoseconds now() {
  timespec read;
  clock_gettime(CLOCK_BOOTTIME, &read);
  return read.tv_sec * 1'000'000'000ll + read.tv_nsec;
}

// Sleeps while there is time for it, and spins for the rest.
void wait_until(Nanoseconds due) {
  for (Nanoseconds left = due - now(); left > 0 && !stopping; left = due - now()) {
    if (left <= kShortestSleep) continue;
    usleep(static_cast<useconds_t>(std::min<Nanoseconds>(left - kShortestSleep / 2, 50'000'000) / 1000));
  }
}

void check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  printf("{\"event\": \"error\", \"call\": \"%s\", \"code\": %d, \"name\": \"%s\", \"boot_ns\": %lld}\n", call,
         static_cast<int>(error), cudaGetErrorName(error), now());
  fflush(stdout);
  _exit(10);
}

// One thread's streams, and what it does on them.
class Worker {
 public:
  Worker(const Options& options, int first_lane) : options_(options), first_lane_(first_lane) {
    streams_.resize(options.streams);
    for (cudaStream_t& stream : streams_) {
      check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    }
    check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming | cudaEventBlockingSync), "cudaEventCreate");
    if (options.graph) capture();
  }

  void run() {
    const Nanoseconds began = now();
    const Nanoseconds burst = static_cast<Nanoseconds>(options_.burst_ms * 1e6);
    const Nanoseconds period = burst + static_cast<Nanoseconds>(options_.rest_ms * 1e6);
    Nanoseconds due = began;
    while (!stopping) {
      const Nanoseconds start = now();
      if (burst > 0 && (start - began) % period >= burst) {
        wait_until(start + period - (start - began) % period);
        due = now();
        continue;
      }
      turn();
      turns += 1;
      const double every_us = changed && options_.then_every_us > 0 ? options_.then_every_us : options_.every_us;
      if (every_us > 0) {
        due += static_cast<Nanoseconds>(every_us * 1e3);
        due = std::max(due, now() - 100'000'000);  // what is missed by more is not made up for
        wait_until(due);
      } else if (options_.pause_us > 0) {
        wait_until(now() + static_cast<Nanoseconds>(options_.pause_us * 1e3));
      }
    }
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

 private:
  void capture() {
    cudaGraph_t graph;
    check(cudaStreamBeginCapture(streams_[0], cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    for (int each = 0; each < options_.batch; ++each) launch(0, each == options_.batch - 1);
    check(cudaStreamEndCapture(streams_[0], &graph), "cudaStreamEndCapture");
    check(cudaGraphInstantiate(&graph_, graph, 0), "cudaGraphInstantiate");
  }

  void turn() {
    if (options_.graph) {
      check(cudaGraphLaunch(graph_, streams_[0]), "cudaGraphLaunch");
      launches += options_.batch;
    } else {
      for (int each = 0; each < options_.batch && !stopping; ++each) {
        const Nanoseconds start = now();
        const bool publishes = start - published_ > kPublishEvery;
        if (publishes) published_ = start;
        launch(static_cast<int>(next_++ % streams_.size()), publishes);
        launches += 1;
      }
    }
    synchronize();
  }

  void launch(int stream, bool publishes) {
    const double us = changed && options_.then_us > 0 ? options_.then_us : options_.us;
    const auto nanoseconds = static_cast<unsigned long long>(us * 1e3);
    residence::spin<<<options_.blocks, 1, static_cast<size_t>(options_.shared_kib) << 10, streams_[stream]>>>(
        tally, host, nanoseconds, first_lane_ + stream, publishes);
    check(cudaGetLastError(), "launch");
  }

  void synchronize() {
    if (options_.sync == "device") {
      check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    } else if (options_.sync == "stream") {
      for (cudaStream_t stream : streams_) check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    } else if (options_.sync == "event") {
      check(cudaEventRecord(event_, streams_[(next_ + streams_.size() - 1) % streams_.size()]), "cudaEventRecord");
      check(cudaEventSynchronize(event_), "cudaEventSynchronize");
    } else if (options_.sync == "query") {
      for (cudaStream_t stream : streams_) {
        cudaError_t told;
        while ((told = cudaStreamQuery(stream)) == cudaErrorNotReady) usleep(20);
        check(told, "cudaStreamQuery");
      }
    }
  }

  const Options& options_;
  const int first_lane_;
  std::vector<cudaStream_t> streams_;
  cudaEvent_t event_ = nullptr;
  cudaGraphExec_t graph_ = nullptr;
  Nanoseconds published_ = 0;
  size_t next_ = 0;
};

void tell() {
  printf("{\"event\": \"count\", \"boot_ns\": %lld, \"sum_ns\": %llu, \"occupied_ns\": %llu, \"cycles\": %llu, "
         "\"blocks\": %llu, \"launches\": %lld, \"turns\": %lld}\n",
         now(), host->sum, host->occupied, host->cycles, host->blocks, launches.load(), turns.load());
  fflush(stdout);
}

void prepare(const Options& options) {
  check(cudaSetDevice(0), "cudaSetDevice");
  check(cudaFuncSetAttribute(residence::spin, cudaFuncAttributeMaxDynamicSharedMemorySize, options.shared_kib << 10),
        "cudaFuncSetAttribute");
  check(cudaMalloc(&tally, sizeof(residence::Tally)), "cudaMalloc");
  check(cudaMemset(tally, 0, sizeof(residence::Tally)), "cudaMemset");
  void* mapped = nullptr;
  check(cudaHostAlloc(&mapped, sizeof(residence::Totals), cudaHostAllocMapped), "cudaHostAlloc");
  memset(mapped, 0, sizeof(residence::Totals));
  host = static_cast<volatile residence::Totals*>(mapped);
  int sms = 0;
  check(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0), "cudaDeviceGetAttribute");
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  printf("{\"event\": \"ready\", \"pid\": %d, \"sms\": %d, \"boot_ns\": %lld}\n", getpid(), sms, now());
  fflush(stdout);
}

Options parse(int argc, char** argv) {
  static const option known[] = {
      {"blocks", required_argument, nullptr, 'b'},     {"us", required_argument, nullptr, 'u'},
      {"batch", required_argument, nullptr, 'n'},      {"every-us", required_argument, nullptr, 'e'},
      {"pause-us", required_argument, nullptr, 'p'},   {"burst-ms", required_argument, nullptr, 'B'},
      {"rest-ms", required_argument, nullptr, 'R'},    {"streams", required_argument, nullptr, 's'},
      {"threads", required_argument, nullptr, 't'},    {"sync", required_argument, nullptr, 'y'},
      {"shared-kib", required_argument, nullptr, 'k'}, {"graph", no_argument, nullptr, 'g'},
      {"then-us", required_argument, nullptr, 'U'},    {"then-every-us", required_argument, nullptr, 'E'},
      {"seconds", required_argument, nullptr, 'S'},    {nullptr, 0, nullptr, 0}};
  Options options;
  for (int key; (key = getopt_long(argc, argv, "", known, nullptr)) != -1;) {
    switch (key) {
      case 'b': options.blocks = atoi(optarg); break;
      case 'u': options.us = atof(optarg); break;
      case 'n': options.batch = atoi(optarg); break;
      case 'e': options.every_us = atof(optarg); break;
      case 'p': options.pause_us = atof(optarg); break;
      case 'B': options.burst_ms = atof(optarg); break;
      case 'R': options.rest_ms = atof(optarg); break;
      case 's': options.streams = atoi(optarg); break;
      case 't': options.threads = atoi(optarg); break;
      case 'y': options.sync = optarg; break;
      case 'k': options.shared_kib = atoi(optarg); break;
      case 'g': options.graph = true; break;
      case 'U': options.then_us = atof(optarg); break;
      case 'E': options.then_every_us = atof(optarg); break;
      case 'S': options.seconds = atof(optarg); break;
      default: exit(2);
    }
  }
  if (optind != argc || options.streams * options.threads > residence::kMostLanes) exit(2);
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const Options options = parse(argc, argv);
  signal(SIGTERM, stop);
  signal(SIGINT, stop);
  signal(SIGUSR1, change);
  prepare(options);
  std::vector<Worker> workers;
  workers.reserve(options.threads);
  for (int each = 0; each < options.threads; ++each) workers.emplace_back(options, each * options.streams);
  std::vector<std::thread> threads;
  for (Worker& worker : workers) threads.emplace_back([&worker] { worker.run(); });
  const Nanoseconds end = now() + static_cast<Nanoseconds>(options.seconds * 1e9);
  for (Nanoseconds due = now(); !stopping && due < end; due += kTellEvery) {
    tell();
    wait_until(due + kTellEvery);
  }
  stopping = 1;
  for (std::thread& thread : threads) thread.join();
  tell();
  printf("{\"event\": \"done\", \"boot_ns\": %lld}\n", now());
  fflush(stdout);
  return 0;
}
