#!/usr/bin/env bash
# Software: CUDA 13.0, driver 580.159.04 and its GPM, NVIDIA H200, with nvidia-ml-py. Needs a GPU with GPM and nvcc.
# Guess: a copy within the memory of a GPU is done by a copy engine, so that no SM is busy. Or, if it runs on SMs: the SM
#   utilization shows how many it needs, so that it becomes much slower if another kernel holds most of them.
# Behaviour: a large copy makes all SMs busy, by GPM. If a kernel holds 100 of the 132 SMs, the copy is hardly slower,
#   although it has only the other 32. A copy from the host makes no SM busy.
# Output seen:
#   copy within the GPU, alone: more than 90 % of the SMs: True
#   beside a kernel on 100 of 132 SMs: copy on less than 26 % of the SMs: True, at more than 0.8 of its speed: True
#   copy from the host: less than 1 % of the SMs: True
set -euo pipefail
command -v nvcc >/dev/null && nvidia-smi -L >/dev/null 2>&1 || exit 77
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/copy.cu" <<'CU'
#include <chrono>
#include <cstdio>
#include <cstring>
__global__ void spin(volatile int *stop) { extern __shared__ char filled[]; filled[threadIdx.x] = 1; if (!threadIdx.x) while (!*stop) __nanosleep(1000000); __syncthreads(); }
int main(int, char **words) {
    bool host = !strcmp(words[1], "host"), beside = !strcmp(words[1], "beside");
    size_t bytes = 1ull << 30;
    int *stop, copies = 0;
    char *from, *to;
    cudaStream_t own, other;
    cudaHostAlloc(&stop, 4, cudaHostAllocMapped);
    *stop = 0;
    cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
    host ? cudaHostAlloc(&from, bytes, 0) : cudaMalloc(&from, bytes);
    cudaMalloc(&to, bytes);
    cudaFuncSetAttribute(spin, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 * 1024);
    if (beside) spin<<<100, 32, 200 * 1024, other>>>(stop);
    puts("ready");
    fflush(stdout);
    auto began = std::chrono::steady_clock::now();
    std::chrono::duration<double> lasted(0);
    for (; lasted.count() < 3; copies++, lasted = std::chrono::steady_clock::now() - began) {
        cudaMemcpyAsync(to, from, bytes, host ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToDevice, own);
        cudaStreamSynchronize(own);
    }
    *stop = 1;
    printf("%f\n", copies / lasted.count());
    return cudaDeviceSynchronize();
}
CU
nvcc -O2 -arch=native -o "$folder/copy" "$folder/copy.cu"
python=python3
if ! "$python" -c "import pynvml" 2>/dev/null; then
    python3 -m venv "$folder/venv"
    python=$folder/venv/bin/python
    "$python" -m pip install -q nvidia-ml-py==13.580.82
fi
cat >"$folder/observe.py" <<'PY'
import subprocess
import sys
import time

import pynvml as nvml

nvml.nvmlInit()
gpu = nvml.nvmlDeviceGetHandleByIndex(0)


def run(kind):
    """Return the SM utilization of a second in percent, and the copies in a second."""
    client = subprocess.Popen([sys.argv[1], kind], stdout=subprocess.PIPE, text=True)
    client.stdout.readline()
    time.sleep(1)
    samples = [nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()]
    nvml.nvmlGpmSampleGet(gpu, samples[0])
    time.sleep(1)
    nvml.nvmlGpmSampleGet(gpu, samples[1])
    get = nvml.c_nvmlGpmMetricsGet_t()
    get.version, get.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, 1
    get.sample1, get.sample2, get.metrics[0].metricId = *samples, nvml.NVML_GPM_METRIC_SM_UTIL
    nvml.nvmlGpmMetricsGet(get)
    return get.metrics[0].value, float(client.communicate()[0])


(alone, speed), (both, slower), (host, _) = run("alone"), run("beside"), run("host")
print(f"alone {alone:.1f} %, {speed:.0f} GiB/s; beside {both:.1f} %, {slower:.0f} GiB/s; host {host:.1f} %", file=sys.stderr)
results = alone > 90, both - 100 * 100 / 132 < 26, slower > 0.8 * speed, host < 1
print(f"copy within the GPU, alone: more than 90 % of the SMs: {results[0]}")
print(
    "beside a kernel on 100 of 132 SMs: copy on less than 26 % of the SMs:"
    f" {results[1]}, at more than 0.8 of its speed: {results[2]}"
)
print(f"copy from the host: less than 1 % of the SMs: {results[3]}")
sys.exit(not all(results))
PY
"$python" "$folder/observe.py" "$folder/copy"
