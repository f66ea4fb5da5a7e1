/* Clients that copy, and clients with kernels beside them: `clients KIND LOG STOP A B GAP`. Each repeats a step, and then
 * sleeps for GAP microseconds, until the file STOP exists. Ten times a second it appends to LOG: boot time, the nanoseconds
 * of SMs that its kernels used, the bytes that it moved in the GPU's memory, and its steps.
 *
 * spin: a kernel on A SMs for B microseconds. read: one on A SMs that reads B MiB each. d2d, set, h2d, d2h: B copies of A KiB.
 * both: a kernel on 16 SMs for 200 microseconds, and B copies of A KiB. A block fills an SM, because it takes its shared memory.
 */
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>

#define SHARED_BYTES (200 * 1024)
#define MOST_SMS 1024
#define CHECK(call)                                                                                        \
    do {                                                                                                   \
        cudaError_t status = call;                                                                         \
        if (status != cudaSuccess) {                                                                       \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(status));                                \
            exit(3);                                                                                       \
        }                                                                                                  \
    } while (0)

__device__ inline unsigned long long nanoseconds()
{
    unsigned long long time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}

__global__ void spin(unsigned long long lasts, unsigned long long *used)
{
    unsigned long long began = nanoseconds();
    while (nanoseconds() - began < lasts)
        ;
    if (threadIdx.x == 0)
        used[blockIdx.x] += nanoseconds() - began;
}

__global__ void read_memory(const uint4 *data, size_t each, unsigned long long *used)
{
    unsigned long long began = nanoseconds();
    const uint4 *own = data + blockIdx.x * each;
    unsigned sum = 0;
    for (size_t i = threadIdx.x; i < each; i += 4 * blockDim.x) {
        uint4 a = own[i], b = own[i + blockDim.x], c = own[i + 2 * blockDim.x], d = own[i + 3 * blockDim.x];
        sum += a.x ^ b.y ^ c.z ^ d.w;
    }
    if (sum == 12345)
        used[MOST_SMS] = sum;
    __syncthreads();
    if (threadIdx.x == 0)
        used[blockIdx.x] += nanoseconds() - began;
}

static unsigned long long boot_ns()
{
    timespec time;
    clock_gettime(CLOCK_BOOTTIME, &time);
    return time.tv_sec * 1000000000ull + time.tv_nsec;
}

int main(int, char **words)
{
    std::string kind = words[1];
    FILE *log = fopen(words[2], "w");
    const char *stop = words[3];
    size_t a = strtoull(words[4], nullptr, 10), b = strtoull(words[5], nullptr, 10);
    unsigned gap = atoi(words[6]);
    bool kernels = kind == "spin" || kind == "read";
    size_t bytes = kind == "spin" ? 4096 : kind == "read" ? a * b << 20 : a << 10;
    unsigned long long *used;
    char *from, *to;
    cudaStream_t stream;
    CHECK(cudaHostAlloc(&used, (MOST_SMS + 1) * sizeof *used, cudaHostAllocMapped));
    memset(used, 0, (MOST_SMS + 1) * sizeof *used);
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(kind == "h2d" ? cudaHostAlloc(&from, bytes, 0) : cudaMalloc(&from, bytes));
    CHECK(kind == "d2h" ? cudaHostAlloc(&to, bytes, 0) : cudaMalloc(&to, bytes));
    CHECK(cudaFuncSetAttribute((const void *)spin, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES));
    CHECK(cudaFuncSetAttribute((const void *)read_memory, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES));
    std::atomic<unsigned long long> steps(0);
    std::atomic<bool> ends(false);
    unsigned long long moved = kind == "spin" ? 0 : kind == "read" ? bytes : kind == "d2d" || kind == "both" ? 2 * b * bytes : b * bytes;
    std::thread writer([&] {
        while (!ends) {
            unsigned long long sum = 0, done = steps;
            for (int sm = 0; sm < MOST_SMS; sm++)
                sum += ((volatile unsigned long long *)used)[sm];
            fprintf(log, "%llu %llu %llu %llu\n", boot_ns(), sum, done * moved, done);
            fflush(log);
            usleep(100000);
        }
    });
    while (access(stop, F_OK)) {
        if (kind == "spin" || kind == "both")
            spin<<<kind == "spin" ? a : 16, 32, SHARED_BYTES, stream>>>(1000 * (kind == "spin" ? b : 200), used);
        if (kind == "read")
            read_memory<<<a, 1024, SHARED_BYTES, stream>>>((uint4 *)from, (b << 20) / sizeof(uint4), used);
        for (size_t copy = 0; !kernels && copy < b; copy++)
            CHECK(kind == "set" ? cudaMemsetAsync(to, 0, bytes, stream)
                  : cudaMemcpyAsync(to, from, bytes, kind == "h2d" ? cudaMemcpyHostToDevice : kind == "d2h" ? cudaMemcpyDeviceToHost : cudaMemcpyDeviceToDevice, stream));
        CHECK(cudaStreamSynchronize(stream));
        steps++;
        if (gap)
            usleep(gap);
    }
    ends = true;
    writer.join();
}
