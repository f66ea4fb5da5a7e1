#!/usr/bin/env bash
# Software: NVML's GPM of driver 580.159.04, NVIDIA H200, with nvidia-ml-py. Needs a GPU with GPM and nvcc.
# Guess: nvmlGpmMetricsGet of two samples gives the SM utilization of the time between them, for any two samples; of
#   samples that are close, it is only less precise.
# Behaviour: the counters of a sample change every 0.1 s. Between two samples that are 20 ms apart, the utilization is 0
#   in about four of five cases, although kernels run all the time, and no error is returned. Of samples that are 0.1 s
#   or more apart it is exact: a kernel on 20 of 132 SMs is within 0.1 points.
# Output seen:
#   samples 0.02 s apart: 0.0 % in most cases: True
#   samples 0.50 s apart: 15.2 % expected, right within 0.3 points: True
set -euo pipefail
command -v nvcc >/dev/null && nvidia-smi -L >/dev/null 2>&1 || exit 77
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/spin.cu" <<'CU'
#include <cstdio>
__global__ void spin(volatile int *stop) { extern __shared__ char filled[]; filled[threadIdx.x] = 1; while (!*stop); }
int main() {
    int *stop;
    cudaHostAlloc(&stop, 4, cudaHostAllocMapped);
    *stop = 0;
    cudaFuncSetAttribute(spin, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 * 1024);
    spin<<<20, 32, 200 * 1024>>>(stop);
    puts("ready");
    fflush(stdout);
    getchar();
    *stop = 1;
    return cudaDeviceSynchronize();
}
CU
nvcc -O2 -arch=native -o "$folder/spin" "$folder/spin.cu"
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
sms = 132  # of an H200
client = subprocess.Popen([sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
client.stdout.readline()
time.sleep(1)


def used(gap, number):
    """Return the SM utilization between samples that are `gap` seconds apart, in percent."""
    samples, found = [], []
    for _ in range(number + 1):
        sample = nvml.nvmlGpmSampleAlloc()
        nvml.nvmlGpmSampleGet(gpu, sample)
        samples.append(sample)
        time.sleep(gap)
    for first, second in zip(samples, samples[1:]):
        get = nvml.c_nvmlGpmMetricsGet_t()
        get.version, get.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, 1
        get.sample1, get.sample2, get.metrics[0].metricId = first, second, nvml.NVML_GPM_METRIC_SM_UTIL
        nvml.nvmlGpmMetricsGet(get)
        found.append(get.metrics[0].value)
    return found


close, apart, expected = used(0.02, 100), used(0.5, 4), 100 * 20 / sms
client.communicate(b"\n")
zero = sum(value == 0 for value in close) > 50
right = all(abs(value - expected) < 0.3 for value in apart)
print(f"samples 0.02 s apart: 0.0 % in most cases: {zero}")
print(f"samples 0.50 s apart: {expected:.1f} % expected, right within 0.3 points: {right}")
sys.exit(not (zero and right))
PY
"$python" "$folder/observe.py" "$folder/spin"
