// A client that works on three buffers, and causes a fault once the file $GO exists. All settings are in the environment.
#include <cuda.h>
#include <cuda_runtime.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

constexpr size_t kGranularity = 2u << 20;

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
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
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

}  // namespace

int main() {
  const std::string way = setting("ALLOCATE"), kind = setting("FAULT"), go = setting("GO"), how = setting("HOW", "write");
  const double mib = atof(setting("MIB", "512").c_str());
  const bool busy = setting("BUSY") == "1";
  const size_t sizes[3] = {64u << 20, 256u << 20, ((size_t)mib << 20) / kGranularity * kGranularity};
  if (!setting("RESERVE").empty()) {
    mmap(nullptr, (size_t)1 << atoi(setting("RESERVE").c_str()), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  cudaFree(nullptr);
  char* buffers[3];
  for (int i = 0; i < 3; i++) {
    buffers[i] = allocate(way, sizes[i]);
    if (buffers[i] == nullptr || cudaMemset(buffers[i], 0, sizes[i]) != cudaSuccess) {
      printf("{\"event\": \"failed\", \"why\": \"no memory\"}\n");
      return 3;
    }
  }
  if (!setting("EXPORT").empty()) export_to(setting("EXPORT"), buffers[0]);
  char* shared = setting("IMPORT").empty() ? nullptr : imported(setting("IMPORT"));
  cudaDeviceSynchronize();
  printf("{\"event\": \"ready\", \"buffers\": [[%zu, %zu], [%zu, %zu], [%zu, %zu]]}\n", (size_t)buffers[0], sizes[0],
         (size_t)buffers[1], sizes[1], (size_t)buffers[2], sizes[2]);
  fflush(stdout);
  bool faulted = false;
  for (;;) {
    if (busy) work<<<64, 256>>>((float*)buffers[1], sizes[1] / 4);
    FILE* stream = kind.empty() || faulted ? nullptr : fopen(go.c_str(), "r");
    if (stream != nullptr) {
      size_t given = 0;
      if (fscanf(stream, "%zx", &given) != 1) given = 0;
      fclose(stream);
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
      } else if (kind == "null") {
        where = (char*)0x40;
      }
      printf("{\"event\": \"fault\", \"address\": %zu}\n", (size_t)where);
      fflush(stdout);
      access<<<1, 1>>>(where, how == "write" ? 0 : how == "read" ? 1 : 2);
      faulted = true;
    }
    if (cudaDeviceSynchronize() != cudaSuccess) {
      printf("{\"event\": \"error\", \"name\": \"%s\"}\n", cudaGetErrorName(cudaGetLastError()));
      return 1;
    }
    if (!busy) usleep(2000);
  }
}
