// A CUDA client of known load. Its options say what it does; stdout says what happened to it, one JSON object a line.
//
//   load [--mib N] [--seconds S] [--busy-ms M --every-ms P] [--fault oob --fault-after S] [--hold S]
//
// It allocates N MiB, then for S seconds runs a kernel of M ms every P ms (M = 0: none). With --fault oob it writes to an
// illegal address once --fault-after seconds have passed. After a CUDA error it stays alive for --hold seconds.
// SIGTERM and SIGINT end it in good order at any time. It dies with the process that started it.

#include <cuda_runtime.h>
#include <getopt.h>
#include <signal.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

enum ExitCode { kDone = 0, kUsage = 2, kNoDevice = 3, kNoContext = 4, kNoMemory = 5, kFailedWhileRunning = 10 };

struct Options {
  size_t mib = 0;
  double seconds = 60;
  double busy_ms = 0;
  double every_ms = 50;
  bool faults = false;
  double fault_after = 1;
  double hold = 0;
};

struct Work {
  long launches = 0;
  double busy_seconds = 0;
};

volatile sig_atomic_t stopping = 0;

void stop(int) { stopping = 1; }

double clock_seconds(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

double wall() { return clock_seconds(CLOCK_REALTIME); }
double monotonic() { return clock_seconds(CLOCK_MONOTONIC); }

// Sleeps in short turns, so that a signal that comes just before a sleep is not missed.
void sleep_until(double deadline) {
  for (double left = deadline - monotonic(); left > 0 && !stopping; left = deadline - monotonic()) {
    usleep(static_cast<useconds_t>(std::min(left, 0.05) * 1e6));
  }
}

bool failed(const char* call, cudaError_t error) {
  if (error == cudaSuccess) return false;
  printf("{\"event\": \"error\", \"call\": \"%s\", \"code\": %d, \"name\": \"%s\", \"at\": %.6f}\n", call,
         static_cast<int>(error), cudaGetErrorName(error), wall());
  fflush(stdout);
  return true;
}

__global__ void spin(unsigned long long nanoseconds) {
  unsigned long long start, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - start < nanoseconds);
}

// Nothing of this process is mapped there. (A terabyte beyond null, which looks as wild, raised no error on an H200.)
__global__ void write_out_of_bounds() { *reinterpret_cast<volatile int*>(0x7f0000000000ULL) = 1; }

// Context, memory and a first kernel come before `ready`, so that the memory in use stays the same from then on.
ExitCode prepare(const Options& options) {
  int devices = 0;
  if (failed("cudaGetDeviceCount", cudaGetDeviceCount(&devices))) return kNoDevice;
  if (failed("cudaFree(0)", cudaFree(nullptr))) return kNoContext;
  void* memory = nullptr;
  const size_t bytes = options.mib << 20;
  if (bytes > 0 && failed("cudaMalloc", cudaMalloc(&memory, bytes))) return kNoMemory;
  spin<<<1, 1>>>(1000);
  if (failed("cudaDeviceSynchronize", cudaDeviceSynchronize())) return kFailedWhileRunning;
  printf("{\"event\": \"ready\", \"pid\": %d, \"allocated_bytes\": %zu, \"at\": %.6f}\n", getpid(), bytes, wall());
  fflush(stdout);
  return kDone;
}

void fault() {
  printf("{\"event\": \"fault\", \"kind\": \"oob\", \"at\": %.6f}\n", wall());
  fflush(stdout);
  write_out_of_bounds<<<1, 1>>>();
}

ExitCode run(const Options& options, Work* work) {
  const double start = monotonic();
  while (!stopping && monotonic() - start < options.seconds) {
    const double turn = monotonic();
    if (options.faults && turn - start >= options.fault_after) {
      fault();
    } else if (options.busy_ms > 0) {
      spin<<<1, 1>>>(static_cast<unsigned long long>(options.busy_ms * 1e6));
      work->launches += 1;
      work->busy_seconds += options.busy_ms * 1e-3;
    }
    // An idle client asks as well: that is how it hears of a neighbour's fault.
    if (failed("cudaDeviceSynchronize", cudaDeviceSynchronize())) return kFailedWhileRunning;
    sleep_until(std::min(turn + options.every_ms * 1e-3, start + options.seconds));
  }
  return kDone;
}

Options parse(int argc, char** argv) {
  static const option known[] = {{"mib", required_argument, nullptr, 'm'},
                                 {"seconds", required_argument, nullptr, 's'},
                                 {"busy-ms", required_argument, nullptr, 'b'},
                                 {"every-ms", required_argument, nullptr, 'e'},
                                 {"fault", required_argument, nullptr, 'f'},
                                 {"fault-after", required_argument, nullptr, 'a'},
                                 {"hold", required_argument, nullptr, 'h'},
                                 {nullptr, 0, nullptr, 0}};
  Options options;
  for (int key; (key = getopt_long(argc, argv, "", known, nullptr)) != -1;) {
    switch (key) {
      case 'm': options.mib = strtoull(optarg, nullptr, 10); break;
      case 's': options.seconds = atof(optarg); break;
      case 'b': options.busy_ms = atof(optarg); break;
      case 'e': options.every_ms = atof(optarg); break;
      case 'f':
        if (strcmp(optarg, "oob") != 0) exit(kUsage);
        options.faults = true;
        break;
      case 'a': options.fault_after = atof(optarg); break;
      case 'h': options.hold = atof(optarg); break;
      default: exit(kUsage);
    }
  }
  if (optind != argc) exit(kUsage);
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  signal(SIGTERM, stop);
  signal(SIGINT, stop);
  const Options options = parse(argc, argv);
  const double start = monotonic();
  Work work;
  ExitCode code = prepare(options);
  if (code == kDone) code = run(options, &work);
  if (code != kDone) sleep_until(monotonic() + options.hold);
  printf("{\"event\": \"done\", \"exit_code\": %d, \"launches\": %ld, \"busy_seconds\": %.3f, \"wall_seconds\": %.3f, "
         "\"at\": %.6f}\n",
         static_cast<int>(code), work.launches, work.busy_seconds, monotonic() - start, wall());
  fflush(stdout);
  return code;
}
