// A client that launches kernels as many programs do, and in one of them causes a fault.
//
//   faulty HABIT KERNELS [--late KERNEL AT] [--fault KIND KERNEL AT once|fresh] [--hold S] [--seed N]
//
// KERNELS are some of kKernels, with commas. HABIT is how it launches them:
//
//   each   one, then a synchronisation
//   batch  20 of them, then a synchronisation; between batches it computes on the CPU
//   rare   three at each request, about three requests a second
//   graph  all six in a CUDA graph, then a synchronisation
//   late   like batch; KERNEL of --late is launched for the first time at AT
//   fast   as many as possible, with a synchronisation after each 100
//   idle   only some at its begin
//
// AT is a time of day in seconds. At --fault, KERNEL accesses memory outside its own (address, null, random), or
// executes a trap or an assert. `fresh`: it was never launched before. `once`: it is one of KERNELS, which fails only
// when a flag in memory is set. All kernels can do the same. stdout has what happened, one JSON object a line. After a
// CUDA error it lives for S seconds.

#include <cuda_runtime.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cassert>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "../gpu/clocks.h"

namespace {

struct Work {
  float* data;
  long count;
  int rounds, fault;
  const volatile int* flag;  // null: it fails at once
  char* where;
};

enum Fault { kNone, kAccess, kTrap, kAssert };

__device__ void work_on(Work work) {
  const long step = gridDim.x * (long)blockDim.x;
  for (int round = 0; round < work.rounds; ++round) {
    for (long i = blockIdx.x * (long)blockDim.x + threadIdx.x; i < work.count; i += step) {
      work.data[i] = work.data[i] * 1.0001f + 0.5f;
    }
  }
  if (work.fault == kNone || blockIdx.x + threadIdx.x != 0 || (work.flag && !*work.flag)) return;
  if (work.fault == kAccess) *(volatile int*)work.where = 1;
  if (work.fault == kTrap) __trap();
  if (work.fault == kAssert) assert(work.count < 0);
}

}  // namespace

namespace model {
#define KERNELS(each)                                                                                              \
  each(attend) each(normalise) each(embed) each(project) each(activate) each(gather) each(scatter) each(reduce_rows) \
  each(sort_keys) each(transpose) each(quantise) each(dropout) each(sample_next) each(merge_heads) each(rotate)      \
  each(accumulate)
#define DEFINE(name) \
  __global__ void name(Work work) { work_on(work); }
KERNELS(DEFINE)
}  // namespace model

namespace {

struct Kernel {
  const char* name;
  const void* function;
};

#define LIST(name) {#name, reinterpret_cast<const void*>(model::name)},
const Kernel kKernels[] = {KERNELS(LIST)};

constexpr long kCount = 1 << 20;
constexpr size_t kBeyond = 1ul << 30;
constexpr int kBatch = 20, kMany = 100;

volatile sig_atomic_t stopping = 0;

struct Client {
  std::string habit, fault;
  std::vector<const Kernel*> kernels;
  const Kernel *late = nullptr, *faulty = nullptr;
  double late_at = 0, fault_at = 0, hold = 0;
  bool once = false, faulted = false, said_late = false;
  std::mt19937 random;
  cudaStream_t stream = nullptr;
  cudaGraphExec_t graph = nullptr;
  float* data = nullptr;
  volatile int* flag = nullptr;
};

const Kernel* find(const std::string& name) {
  for (const Kernel& kernel : kKernels) {
    if (name == kernel.name) return &kernel;
  }
  exit(2);
}

void fails(Client& client, const char* call, cudaError_t error) {
  if (error == cudaSuccess) return;
  printf("{\"event\": \"error\", \"call\": \"%s\", \"code\": %d, \"at\": %.6f}\n", call, error, wall());
  for (const double end = wall() + client.hold; wall() < end && !stopping;) usleep(10000);
  _exit(1);
}

void launch(Client& client, const Kernel* kernel, bool fails_now = false) {
  Work work = {client.data, client.habit == "fast" ? 256 : kCount, 1 + (int)(client.random() % 4), kNone, nullptr, nullptr};
  if (kernel == client.faulty && (client.once || fails_now)) {
    work.fault = client.fault == "trap" ? kTrap : client.fault == "assert" ? kAssert : kAccess;
    work.flag = client.once ? client.flag : nullptr;
    work.where = reinterpret_cast<char*>(client.data + kCount) + kBeyond;
    if (client.fault == "null") work.where = nullptr;
    if (client.fault == "random") work.where = (char*)(0x7f0000000000ul + (client.random() & 0xfffffff0ul) * 128);
  }
  void* arguments[] = {&work};
  const dim3 grid(4 + client.random() % 28), block(256);
  fails(client, "launch", cudaLaunchKernel(kernel->function, grid, block, arguments, 0, client.stream));
}

const Kernel* any(Client& client) { return client.kernels[client.random() % client.kernels.size()]; }

void capture(Client& client) {
  cudaGraph_t graph;
  fails(client, "capture", cudaStreamBeginCapture(client.stream, cudaStreamCaptureModeGlobal));
  for (const Kernel* kernel : client.kernels) launch(client, kernel);
  fails(client, "capture", cudaStreamEndCapture(client.stream, &graph));
  fails(client, "instantiate", cudaGraphInstantiate(&client.graph, graph, 0));
}

void fault_if_due(Client& client) {
  if (!client.faulty || client.faulted || wall() < client.fault_at) return;
  client.faulted = true;
  printf("{\"event\": \"fault\", \"at\": %.6f}\n", wall());
  if (client.once) *client.flag = 1;
}

// One turn up to its synchronisation.
void turn(Client& client) {
  const bool before = client.faulted, late = client.late && wall() >= client.late_at;
  fault_if_due(client);
  const bool now = client.faulted && !before;
  const int number = client.habit == "each" ? 1 : client.habit == "rare" ? 3 : client.habit == "fast" ? kMany : kBatch;
  const int at = client.random() % number;
  if (client.graph) {
    fails(client, "cudaGraphLaunch", cudaGraphLaunch(client.graph, client.stream));
    if (now && !client.once) launch(client, client.faulty, true);
  }
  for (int i = 0; i < number && !client.graph; ++i) {
    launch(client, any(client));
    if (now && i == at) launch(client, client.faulty, true);
    if (late && i == at) launch(client, client.late);
  }
  if (late && !client.said_late) {
    client.said_late = true;
    printf("{\"event\": \"late\", \"at\": %.6f}\n", wall());
  }
  fails(client, "cudaStreamSynchronize", cudaStreamSynchronize(client.stream));
  if (client.habit == "rare") usleep(200000 + client.random() % 200000);
  if (client.habit == "each") usleep(500 + client.random() % 1000);
  if (client.habit != "fast") usleep(2000 + client.random() % 6000);
}

}  // namespace

int main(int argc, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  setvbuf(stdout, nullptr, _IOLBF, 0);
  signal(SIGTERM, [](int) { stopping = 1; });
  if (argc < 3) return 2;
  Client client;
  client.habit = argv[1];
  for (char* name = strtok(argv[2], ","); name; name = strtok(nullptr, ",")) client.kernels.push_back(find(name));
  for (int i = 3; i < argc; ++i) {
    const std::string option = argv[i];
    if (option == "--late" && i + 2 < argc) {
      client.late = find(argv[++i]);
      client.late_at = atof(argv[++i]);
    } else if (option == "--fault" && i + 4 < argc) {
      client.fault = argv[++i];
      client.faulty = find(argv[++i]);
      client.fault_at = atof(argv[++i]);
      client.once = std::string(argv[++i]) == "once";
    } else if (option == "--hold" && i + 1 < argc) {
      client.hold = atof(argv[++i]);
    } else if (option == "--seed" && i + 1 < argc) {
      client.random.seed(atoi(argv[++i]));
    } else {
      return 2;
    }
  }
  fails(client, "cudaStreamCreate", cudaStreamCreate(&client.stream));
  fails(client, "cudaMalloc", cudaMalloc(&client.data, kCount * sizeof *client.data));
  fails(client, "cudaMemset", cudaMemset(client.data, 0, kCount * sizeof *client.data));
  fails(client, "cudaHostAlloc", cudaHostAlloc((void**)&client.flag, sizeof *client.flag, cudaHostAllocMapped));
  *client.flag = 0;
  if (client.habit == "graph") capture(client);
  turn(client);
  printf("{\"event\": \"ready\", \"at\": %.6f}\n", wall());
  while (!stopping) {
    if (client.habit == "idle") usleep(100000);
    else turn(client);
  }
  printf("{\"event\": \"done\", \"at\": %.6f}\n", wall());
  return 0;
}
