// A client that works on three buffers of each GPU in $DEVICES, and causes a fault on $FAULT_ON once the file $GO exists.
// All settings are in the environment.
#include <cuda.h>
#include <cuda_runtime.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

namespace {

constexpr size_t kGranularity = 2u << 20;
constexpr int kBuffers = 3;
constexpr useconds_t kSpread = 300 * 1000;
constexpr size_t kExtra = 96u << 20;

volatile sig_atomic_t ended = 0;

struct Device {
  int number;
  char* buffers[kBuffers];
};

std::string setting(const char* name, const char* otherwise = "") {
  const char* value = getenv(name);
  return value == nullptr ? otherwise : value;
}

__global__ void work(float* data, size_t count) {
  for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += gridDim.x * (size_t)blockDim.x) {
    data[i] = data[i] * 1.0001f + 0.5f;
  }
}

__global__ void access(char* where, int how) {
  if (how == 0) *(volatile int*)where = 1;
  if (how == 1) (void)*(volatile int*)where;
  if (how == 2) atomicAdd((int*)where, 1);
}

// Reserve twice the size, and map memory in the first half.
char* map_memory(size_t size, CUmemGenericAllocationHandle* handle) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  int device = 0;
  cudaGetDevice(&device);
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  CUmemAccessDesc rights = {properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUdeviceptr where = 0;
  if (cuMemAddressReserve(&where, 2 * size, 0, 0, 0) || cuMemCreate(handle, size, &properties, 0) ||
      cuMemMap(where, size, 0, *handle, 0) || cuMemSetAccess(where, size, &rights, 1)) {
    return nullptr;
  }
  return (char*)where;
}

char* allocate(const std::string& way, size_t size) {
  char* where = nullptr;
  CUmemGenericAllocationHandle handle;
  if (way == "vmm") return map_memory(size, &handle);
  if (way == "managed") {
    cudaMallocManaged(&where, size);
  } else if (way == "async") {
    cudaMallocAsync(&where, size, 0);
  } else {
    cudaMalloc(&where, size);
  }
  return where;
}

void release(const std::string& way, char* where, size_t size) {
  cudaDeviceSynchronize();
  if (way == "vmm") {
    cuMemUnmap((CUdeviceptr)where, size);
  } else if (way == "async") {
    cudaFreeAsync(where, 0);
    cudaDeviceSynchronize();
    cudaMemPool_t pool;
    cudaDeviceGetDefaultMemPool(&pool, 0);
    cudaMemPoolTrimTo(pool, 0);
  } else {
    cudaFree(where);
  }
}

char* imported(const std::string& file) {
  cudaIpcMemHandle_t handle;
  FILE* stream = nullptr;
  while ((stream = fopen(file.c_str(), "rb")) == nullptr) usleep(1000);
  void* where = nullptr;
  if (fread(&handle, sizeof handle, 1, stream) == 1) cudaIpcOpenMemHandle(&where, handle, cudaIpcMemLazyEnablePeerAccess);
  fclose(stream);
  return (char*)where;
}

void export_to(const std::string& file, char* where) {
  cudaIpcMemHandle_t handle;
  cudaIpcGetMemHandle(&handle, where);
  FILE* stream = fopen((file + ".new").c_str(), "wb");
  fwrite(&handle, sizeof handle, 1, stream);
  fclose(stream);
  rename((file + ".new").c_str(), file.c_str());
}

// Become one of several forked workers, and return its number; the first process waits until they have ended.
int fork_workers(int workers) {
  for (int number = 0; number < workers; number++) {
    if (fork() == 0) return number;
  }
  while (wait(nullptr) > 0) {
  }
  exit(0);
}

std::vector<Device> allocate_all(const std::string& way, const size_t* sizes) {
  std::vector<Device> devices;
  std::stringstream numbers(setting("DEVICES", "0"));
  for (std::string number; std::getline(numbers, number, ',');) {
    Device device = {atoi(number.c_str()), {}};
    cudaSetDevice(device.number);
    cudaFree(nullptr);
    for (int i = 0; i < kBuffers; i++) {
      device.buffers[i] = allocate(way, sizes[i]);
      if (device.buffers[i] == nullptr || cudaMemset(device.buffers[i], 0, sizes[i]) != cudaSuccess) return {};
    }
    devices.push_back(device);
  }
  return devices;
}

bool synchronize(const std::vector<Device>& devices) {
  for (const Device& device : devices) {
    cudaSetDevice(device.number);
    if (cudaDeviceSynchronize() != cudaSuccess) return false;
  }
  return true;
}

}  // namespace

int main() {
  const std::string way = setting("ALLOCATE"), go = setting("GO"), how = setting("HOW", "write");
  const double mib = atof(setting("MIB", "512").c_str());
  const bool busy = setting("BUSY") == "1";
  const int workers = atoi(setting("WORKERS", "0").c_str()), exit_ms = atoi(setting("EXIT_MS", "-1").c_str());
  const size_t sizes[kBuffers] = {64u << 20, 256u << 20, ((size_t)mib << 20) / kGranularity * kGranularity};
  std::string kind = setting("FAULT"), who;
  setvbuf(stdout, nullptr, _IOLBF, 0);
  signal(SIGTERM, [](int) { ended = 1; });
  if (!setting("RESERVE").empty()) {
    mmap(nullptr, (size_t)1 << atoi(setting("RESERVE").c_str()), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  if (workers > 0) {
    const int number = fork_workers(workers);
    if (number != atoi(setting("CULPRIT").c_str())) kind = "";
    who = ", \"pid\": " + std::to_string(getpid());
    printf("{\"event\": \"worker\", \"number\": %d%s}\n", number, who.c_str());
    if (setting("SPREAD") == "1") {
      usleep(number * kSpread);
      for (int i = 0; i < number; i++) allocate(way, kExtra);
    }
  }
  const std::vector<Device> devices = allocate_all(way, sizes);
  if (devices.empty()) {
    printf("{\"event\": \"failed\", \"why\": \"no memory\"%s}\n", who.c_str());
    return 3;
  }
  const Device* culprit = &devices[0];
  for (const Device& device : devices) {
    if (device.number == atoi(setting("FAULT_ON", "0").c_str())) culprit = &device;
  }
  char* const* buffers = culprit->buffers;
  if (!setting("EXPORT").empty()) export_to(setting("EXPORT"), buffers[0]);
  char* shared = setting("IMPORT").empty() ? nullptr : imported(setting("IMPORT"));
  synchronize(devices);
  std::string list;
  for (const Device& device : devices) {
    for (int i = 0; i < kBuffers; i++) {
      list += (list.empty() ? "[" : ", [") + std::to_string((size_t)device.buffers[i]) + ", " + std::to_string(sizes[i]) + "]";
    }
  }
  printf("{\"event\": \"ready\", \"buffers\": [%s]%s}\n", list.c_str(), who.c_str());
  bool faulted = false;
  while (!ended) {
    for (const Device& device : devices) {
      cudaSetDevice(device.number);
      if (busy) work<<<64, 256>>>((float*)device.buffers[1], sizes[1] / 4);
    }
    FILE* stream = kind.empty() || faulted ? nullptr : fopen(go.c_str(), "r");
    if (stream != nullptr) {
      size_t given = 0;
      if (fscanf(stream, "%zx", &given) != 1) given = 0;
      fclose(stream);
      cudaSetDevice(culprit->number);
      char* where = nullptr;
      int which = 0;
      long bytes = 0;
      if (sscanf(kind.c_str(), "past:%d:%ld", &which, &bytes) == 2) {
        where = buffers[which] + sizes[which] + bytes;
      } else if (sscanf(kind.c_str(), "before:%d:%ld", &which, &bytes) == 2) {
        where = buffers[which] - bytes;
      } else if (kind == "freed") {
        release(way, buffers[2], sizes[2]);
        where = buffers[2] + (1 << 20);
      } else if (sscanf(kind.c_str(), "shared:%ld", &bytes) == 1) {
        where = shared + sizes[0] + bytes;
      } else if (kind == "host") {
        where = (char*)malloc(64u << 20) + (1 << 20);
      } else if (kind == "given") {
        where = (char*)given;
      } else if (sscanf(kind.c_str(), "null:%ld", &bytes) == 1) {
        where = (char*)bytes;
      }
      printf("{\"event\": \"fault\", \"address\": %zu%s}\n", (size_t)where, who.c_str());
      access<<<1, 1>>>(where, how == "write" ? 0 : how == "read" ? 1 : 2);
      if (exit_ms >= 0) {
        usleep(exit_ms * 1000);
        _exit(0);
      }
      faulted = true;
    }
    if (!synchronize(devices)) {
      printf("{\"event\": \"error\", \"name\": \"%s\"%s}\n", cudaGetErrorName(cudaGetLastError()), who.c_str());
      return 1;
    }
    if (!busy) usleep(2000);
  }
  return 0;
}
