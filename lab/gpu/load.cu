// A CUDA client of known load. Its options say what it does; stdout says what happened to it, one JSON object a line.
//
//   load [--mib N] [--devices 0,1] [--busy-ms M --every-ms P] [--work KIND] [--seconds S | --exit-at EPOCH]
//        [--fault KIND --fault-after S | --fault-at EPOCH] [--hold S] [--on-term leave|die] [--greed N]
//
// On each of its devices it allocates N MiB, then for S seconds works for M ms every P ms (M = 0: never), as work.cuh
// has it: `spin`, which is the default, is a kernel of one thread. With --fault it does harm of that kind (harm.cuh)
// once, on its first device, when --fault-after seconds have passed. Times of day are seconds since the epoch. After a
// CUDA error it stays alive for --hold seconds. SIGTERM and SIGINT end it in good order at any time, but with --on-term
// die SIGTERM kills it. It dies with the process that started it. `ready` tells how many SMs it was given and, with
// --greed, whether it would get so many MiB more (means.cuh).

#include <cuda_runtime.h>
#include <getopt.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "clocks.h"
#include "harm.cuh"
#include "means.cuh"

namespace {

enum ExitCode { kDone = 0, kUsage = 2, kNoDevice = 3, kNoContext = 4, kNoMemory = 5, kFailedWhileRunning = 10 };

struct Options {
  size_t mib = 0;
  std::vector<work::Device> devices = {{}};
  double seconds = 60;
  double exit_at = INFINITY;
  double busy_ms = 0;
  double every_ms = 50;
  work::Doing work = work::spin;
  const harm::Kind* fault = nullptr;
  double fault_after = 1;
  double fault_at = INFINITY;
  double hold = 0;
  size_t greed = 0;
  bool dies_of_term = false;
};

struct Done {
  long launches = 0;
  double busy_seconds = 0;
};

volatile sig_atomic_t stopping = 0;

void stop(int) { stopping = 1; }

// Sleeps in short turns, so that a signal that comes just before a sleep is not missed.
void sleep_until(double deadline) {
  for (double left = deadline - monotonic(); left > 0 && !stopping; left = deadline - monotonic()) {
    usleep(static_cast<useconds_t>(std::min(left, 0.05) * 1e6));
  }
}

double from_wall(double time) { return monotonic() + (time - wall()); }

bool failed(const char* call, cudaError_t error) {
  if (error == cudaSuccess) return false;
  printf("{\"event\": \"error\", \"call\": \"%s\", \"code\": %d, \"name\": \"%s\", \"at\": %.6f}\n", call,
         static_cast<int>(error), cudaGetErrorName(error), wall());
  fflush(stdout);
  return true;
}

bool synchronize_fails(const Options& options) {
  for (const work::Device& device : options.devices) {
    cudaSetDevice(device.ordinal);
    if (failed("cudaDeviceSynchronize", cudaDeviceSynchronize())) return true;
  }
  cudaSetDevice(options.devices[0].ordinal);
  return false;
}

void work_everywhere(Options& options, work::Doing work, double milliseconds) {
  for (work::Device& device : options.devices) {
    cudaSetDevice(device.ordinal);
    work(device, milliseconds);
  }
  cudaSetDevice(options.devices[0].ordinal);
}

// Context, memory and a first kernel come before `ready`, so that the memory in use stays the same from then on.
ExitCode prepare(Options& options) {
  int devices = 0;
  if (failed("cudaGetDeviceCount", cudaGetDeviceCount(&devices))) return kNoDevice;
  const size_t bytes = options.mib << 20;
  for (work::Device& device : options.devices) {
    if (failed("cudaSetDevice", cudaSetDevice(device.ordinal))) return kNoDevice;
    if (failed("cudaFree(0)", cudaFree(nullptr))) return kNoContext;
    device.bytes = bytes;
    if (bytes > 0 && failed("cudaMalloc", cudaMalloc(&device.memory, bytes))) return kNoMemory;
  }
  work_everywhere(options, work::spin, 0.001);
  if (synchronize_fails(options)) return kFailedWhileRunning;
  const int first = options.devices[0].ordinal;
  const bool granted = options.greed > 0 && means::grants(options.greed << 20);
  printf("{\"event\": \"ready\", \"pid\": %d, \"allocated_bytes\": %zu, ", getpid(), bytes * options.devices.size());
  printf("\"processors\": %d, \"granted\": %s, \"at\": %.6f}\n", means::processors(first), granted ? "true" : "false",
         wall());
  fflush(stdout);
  return kDone;
}

ExitCode run(Options& options, Done* done) {
  const double start = monotonic();
  const double end = std::min(start + options.seconds, from_wall(options.exit_at));
  double fault_due = INFINITY;
  if (options.fault) fault_due = options.fault_at < INFINITY ? from_wall(options.fault_at) : start + options.fault_after;
  while (!stopping && monotonic() < end) {
    const double turn = monotonic();
    if (turn >= fault_due) {
      fault_due = INFINITY;
      harm::act(*options.fault);
    } else if (options.busy_ms > 0) {
      work_everywhere(options, options.work, options.busy_ms);
      done->launches += 1;
      done->busy_seconds += options.busy_ms * 1e-3;
    }
    // An idle client asks as well: that is how it hears of a neighbour's fault.
    if (synchronize_fails(options)) return kFailedWhileRunning;
    sleep_until(std::min({turn + options.every_ms * 1e-3, end, fault_due}));
  }
  return kDone;
}

std::vector<work::Device> devices(const char* text) {
  std::vector<work::Device> found;
  for (const char* rest = text; rest; rest = strchr(rest, ',')) found.push_back({atoi(rest += *rest == ',')});
  return found;
}

Options parse(int argc, char** argv) {
  static const option known[] = {{"mib", required_argument, nullptr, 'm'},
                                 {"devices", required_argument, nullptr, 'd'},
                                 {"seconds", required_argument, nullptr, 's'},
                                 {"exit-at", required_argument, nullptr, 'x'},
                                 {"busy-ms", required_argument, nullptr, 'b'},
                                 {"every-ms", required_argument, nullptr, 'e'},
                                 {"work", required_argument, nullptr, 'w'},
                                 {"fault", required_argument, nullptr, 'f'},
                                 {"fault-after", required_argument, nullptr, 'a'},
                                 {"fault-at", required_argument, nullptr, 't'},
                                 {"hold", required_argument, nullptr, 'h'},
                                 {"on-term", required_argument, nullptr, 'o'},
                                 {"greed", required_argument, nullptr, 'g'},
                                 {nullptr, 0, nullptr, 0}};
  Options options;
  for (int key; (key = getopt_long(argc, argv, "", known, nullptr)) != -1;) {
    switch (key) {
      case 'm': options.mib = strtoull(optarg, nullptr, 10); break;
      case 'd': options.devices = devices(optarg); break;
      case 's': options.seconds = atof(optarg); break;
      case 'x': options.exit_at = atof(optarg); break;
      case 'b': options.busy_ms = atof(optarg); break;
      case 'e': options.every_ms = atof(optarg); break;
      case 'w':
        options.work = work::find(optarg);
        if (!options.work) exit(kUsage);
        break;
      case 'f':
        options.fault = harm::find(optarg);
        if (!options.fault) exit(kUsage);
        break;
      case 'a': options.fault_after = atof(optarg); break;
      case 't': options.fault_at = atof(optarg); break;
      case 'h': options.hold = atof(optarg); break;
      case 'o':
        if (strcmp(optarg, "leave") != 0 && strcmp(optarg, "die") != 0) exit(kUsage);
        options.dies_of_term = strcmp(optarg, "die") == 0;
        break;
      case 'g': options.greed = strtoull(optarg, nullptr, 10); break;
      default: exit(kUsage);
    }
  }
  if (optind != argc) exit(kUsage);
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  Options options = parse(argc, argv);
  if (!options.dies_of_term) signal(SIGTERM, stop);
  signal(SIGINT, stop);
  const double start = monotonic();
  Done done;
  ExitCode code = prepare(options);
  if (code == kDone) code = run(options, &done);
  if (code != kDone) sleep_until(monotonic() + options.hold);
  printf("{\"event\": \"done\", \"exit_code\": %d, \"launches\": %ld, \"busy_seconds\": %.3f, \"wall_seconds\": %.3f, "
         "\"at\": %.6f}\n",
         static_cast<int>(code), done.launches, done.busy_seconds, monotonic() - start, wall());
  fflush(stdout);
  return code;
}
