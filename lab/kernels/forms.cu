// A client that launches its kernels in one form, 100 to 200 steps a second, until SIGTERM.
//
//   forms FORM [CUBIN]
//
// streams       two kernels on two streams, by the runtime
// dependent     programmatic dependent launch, by cudaLaunchKernelEx
// capture       a graph of two kernels, by stream capture
// nodes         a graph of two kernels, by cudaGraphAddKernelNode
// driver        two kernels of the file CUBIN, by cuModuleGetFunction
// driver-nodes  a graph of two kernels of CUBIN, by cuGraphAddKernelNode
// library       two kernels of CUBIN, by cuLibraryEnumerateKernels
// while         a graph whose WHILE node repeats two kernels (only if compiled with -DWHILE -rdc=true)
//
// stdout says which kernels it launches, then `ready`, then how many steps there were.

#include <cuda.h>
#include <cuda_runtime.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>

namespace {

constexpr int kCount = 1 << 16;
constexpr useconds_t kPause = 5000;

volatile sig_atomic_t stopping = 0;
cudaStream_t streams[2];
float* data;
int count = kCount;

void check(int error, const char* what) {
  if (error == 0) return;
  printf("{\"event\": \"failed\", \"why\": \"%s: error %d\"}\n", what, error);
  fflush(stdout);
  _exit(1);
}

}  // namespace

#define CHECK(call) check(static_cast<int>(call), #call)

namespace forms {

template <typename Number>
__global__ void scale(Number* numbers, int count) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) numbers[i] *= 1.0001f;
}

__global__ void shift(float* numbers, int count) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) numbers[i] += 0.5f;
}

template __global__ void scale<float>(float*, int);

}  // namespace forms

extern "C" __global__ void plain(float* numbers, int count) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) numbers[i] -= 0.5f;
}

#ifdef WHILE
__global__ void decide(cudaGraphConditionalHandle handle, int* left) {
  *left = *left == 0 ? 9 : *left - 1;
  cudaGraphSetConditional(handle, *left != 0);
}
#endif

namespace {

using Step = std::function<void()>;

constexpr const char* kMangled = "_ZN5forms5shiftEPfi";

Step replay(cudaGraph_t graph) {
  cudaGraphExec_t runnable;
  CHECK(cudaGraphInstantiate(&runnable, graph, 0));
  return [runnable] {
    CHECK(cudaGraphLaunch(runnable, streams[0]));
    CHECK(cudaStreamSynchronize(streams[0]));
  };
}

Step on_streams() {
  return [] {
    for (int i = 0; i < 4; ++i) {
      forms::scale<<<8, 256, 0, streams[0]>>>(data, count);
      forms::shift<<<16, 256, 0, streams[1]>>>(data, count);
    }
    CHECK(cudaDeviceSynchronize());
  };
}

Step dependent() {
  return [] {
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = 8;
    config.blockDim = 256;
    config.stream = streams[0];
    config.attrs = &attribute;
    config.numAttrs = 1;
    for (int i = 0; i < 4; ++i) {
      CHECK(cudaLaunchKernelEx(&config, forms::scale<float>, data, count));
      CHECK(cudaLaunchKernelEx(&config, forms::shift, data, count));
    }
    CHECK(cudaStreamSynchronize(streams[0]));
  };
}

Step capture() {
  cudaGraph_t graph;
  CHECK(cudaStreamBeginCapture(streams[0], cudaStreamCaptureModeGlobal));
  forms::scale<<<8, 256, 0, streams[0]>>>(data, count);
  forms::shift<<<16, 256, 0, streams[0]>>>(data, count);
  CHECK(cudaStreamEndCapture(streams[0], &graph));
  return replay(graph);
}

Step nodes() {
  cudaGraph_t graph;
  CHECK(cudaGraphCreate(&graph, 0));
  void* arguments[] = {&data, &count};
  cudaGraphNode_t first, second;
  cudaKernelNodeParams parameters = {};
  parameters.func = reinterpret_cast<void*>(forms::scale<float>);
  parameters.gridDim = 8;
  parameters.blockDim = 256;
  parameters.kernelParams = arguments;
  CHECK(cudaGraphAddKernelNode(&first, graph, nullptr, 0, &parameters));
  parameters.func = reinterpret_cast<void*>(forms::shift);
  CHECK(cudaGraphAddKernelNode(&second, graph, &first, 1, &parameters));
  return replay(graph);
}

void launch(CUfunction function) {
  void* arguments[] = {&data, &count};
  CHECK(cuLaunchKernel(function, 8, 1, 1, 256, 1, 1, 0, reinterpret_cast<CUstream>(streams[0]), arguments, nullptr));
}

struct Functions {
  CUfunction plain, shift;
};

Functions functions(const char* cubin) {
  CUmodule module;
  Functions found;
  CHECK(cuModuleLoad(&module, cubin));
  CHECK(cuModuleGetFunction(&found.plain, module, "plain"));
  CHECK(cuModuleGetFunction(&found.shift, module, kMangled));
  return found;
}

Step driver(const char* cubin) {
  const Functions found = functions(cubin);
  return [found] {
    for (int i = 0; i < 4; ++i) {
      launch(found.plain);
      launch(found.shift);
    }
    CHECK(cuStreamSynchronize(reinterpret_cast<CUstream>(streams[0])));
  };
}

Step driver_nodes(const char* cubin) {
  const Functions found = functions(cubin);
  CUgraph graph;
  CHECK(cuGraphCreate(&graph, 0));
  void* arguments[] = {&data, &count};
  CUgraphNode first, second;
  CUDA_KERNEL_NODE_PARAMS parameters = {};
  parameters.func = found.plain;
  parameters.gridDimX = 8;
  parameters.gridDimY = parameters.gridDimZ = parameters.blockDimY = parameters.blockDimZ = 1;
  parameters.blockDimX = 256;
  parameters.kernelParams = arguments;
  CHECK(cuGraphAddKernelNode(&first, graph, nullptr, 0, &parameters));
  parameters.func = found.shift;
  CHECK(cuGraphAddKernelNode(&second, graph, &first, 1, &parameters));
  return replay(reinterpret_cast<cudaGraph_t>(graph));
}

Step library(const char* cubin) {
  CUlibrary loaded;
  CUkernel kernels[8];
  unsigned int number = 0;
  CHECK(cuLibraryLoadFromFile(&loaded, cubin, nullptr, nullptr, 0, nullptr, nullptr, 0));
  CHECK(cuLibraryGetKernelCount(&number, loaded));
  number = number < 8 ? number : 8;
  CHECK(cuLibraryEnumerateKernels(kernels, number, loaded));
  std::string handles(reinterpret_cast<const char*>(kernels), sizeof kernels);
  return [handles, number] {
    for (unsigned int i = 0; i < number; ++i) launch(reinterpret_cast<const CUfunction*>(handles.data())[i]);
    CHECK(cuStreamSynchronize(reinterpret_cast<CUstream>(streams[0])));
  };
}

#ifdef WHILE
Step repeat() {
  int* left;
  cudaGraph_t graph;
  cudaGraphNode_t node;
  cudaGraphConditionalHandle handle;
  CHECK(cudaMalloc(&left, sizeof *left));
  CHECK(cudaMemset(left, 0, sizeof *left));
  CHECK(cudaGraphCreate(&graph, 0));
  CHECK(cudaGraphConditionalHandleCreate(&handle, graph, 1, cudaGraphCondAssignDefault));
  cudaGraphNodeParams parameters = {};
  parameters.type = cudaGraphNodeTypeConditional;
  parameters.conditional.handle = handle;
  parameters.conditional.type = cudaGraphCondTypeWhile;
  parameters.conditional.size = 1;
  CHECK(cudaGraphAddNode(&node, graph, nullptr, nullptr, 0, &parameters));
  cudaGraph_t body = parameters.conditional.phGraph_out[0];
  CHECK(cudaStreamBeginCaptureToGraph(streams[0], body, nullptr, nullptr, 0, cudaStreamCaptureModeGlobal));
  forms::shift<<<8, 256, 0, streams[0]>>>(data, count);
  decide<<<1, 1, 0, streams[0]>>>(handle, left);
  CHECK(cudaStreamEndCapture(streams[0], nullptr));
  return replay(graph);
}
#endif

struct Form {
  const char *name, *kernels;
  Step (*begin)(const char* cubin);
};

const Form kForms[] = {
    {"streams", "\"scale\", \"shift\"", [](const char*) { return on_streams(); }},
    {"dependent", "\"scale\", \"shift\"", [](const char*) { return dependent(); }},
    {"capture", "\"scale\", \"shift\"", [](const char*) { return capture(); }},
    {"nodes", "\"scale\", \"shift\"", [](const char*) { return nodes(); }},
    {"driver", "\"plain\", \"shift\"", driver},
    {"driver-nodes", "\"plain\", \"shift\"", driver_nodes},
    {"library", "\"plain\", \"scale\", \"shift\"", library},
#ifdef WHILE
    {"while", "\"shift\", \"decide\"", [](const char*) { return repeat(); }},
#endif
};

}  // namespace

int main(int argc, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  setvbuf(stdout, nullptr, _IOLBF, 0);
  signal(SIGTERM, [](int) { stopping = 1; });
  for (const Form& form : kForms) {
    if (argc < 2 || strcmp(form.name, argv[1]) != 0) continue;
    for (cudaStream_t& stream : streams) CHECK(cudaStreamCreate(&stream));
    CHECK(cudaMalloc(&data, kCount * sizeof *data));
    CHECK(cudaMemset(data, 0, kCount * sizeof *data));
    const Step step = form.begin(argc > 2 ? argv[2] : nullptr);
    step();
    printf("{\"event\": \"kernels\", \"names\": [%s]}\n{\"event\": \"ready\"}\n", form.kernels);
    long steps = 1;
    for (; !stopping; ++steps) {
      step();
      usleep(kPause);
    }
    printf("{\"event\": \"done\", \"steps\": %ld}\n", steps);
    return 0;
  }
  return 2;
}
