"""A client of one framework that repeats one step: `python3 -m lab.kernels.frameworks KIND [--pause SECONDS]`.

It prints JSON lines: `ready` after its warm-up, and after SIGTERM the kernels that it launches, as far as it knows.
PyTorch knows them by its profiler, which runs only then. Further kinds are those of `lab.attribution.frameworks`.
"""

import argparse
import json
import signal
import time
from collections.abc import Callable
from typing import Any

from lab.attribution.frameworks import KINDS as OTHERS
from lab.attribution.frameworks import Step, _torch

WARM_UP_STEPS, PROFILED_STEPS = 10, 3
SOURCE = 'extern "C" __global__ void %s(float* data, int count) { int i = blockIdx.x * blockDim.x + threadIdx.x; '
SOURCE += "if (i < count) data[i] = data[i] * 1.0001f + 0.5f; }"
COUNT, THREADS = 1 << 16, 256

Made = tuple[Step, list[str]]
"""A step, and the kernels that it launches, as far as they are known."""


def torch_eager() -> Made:
    """Multiply matrices, and normalise."""
    torch = _torch()
    data, norm = torch.randn(512, 512, device="cuda"), torch.nn.LayerNorm(512).cuda()

    def step() -> None:
        with torch.no_grad():
            torch.softmax(norm(data @ data), -1)
        torch.cuda.synchronize()

    return step, []


def torch_light() -> Made:
    """Launch twenty small kernels."""
    torch = _torch()
    data = torch.zeros(4096, device="cuda")

    def step() -> None:
        for _ in range(5):
            data.add_(1.0).mul_(0.5).tanh_().sub_(0.1)
        torch.cuda.synchronize()

    return step, []


def cupy_raw() -> Made:
    """Launch a RawKernel, and one of a RawModule."""
    import cupy  # type: ignore[import-not-found,unused-ignore]

    kernels = [
        cupy.RawKernel(SOURCE % "raw_kernel", "raw_kernel"),
        cupy.RawModule(code=SOURCE % "module_kernel").get_function("module_kernel"),
    ]
    data = cupy.zeros(COUNT, dtype=cupy.float32)

    def step() -> None:
        for kernel in kernels:
            kernel((COUNT // THREADS,), (THREADS,), (data, cupy.int32(COUNT)))
        cupy.cuda.Device().synchronize()

    return step, ["raw_kernel", "module_kernel"]


def numba_jit() -> Made:
    """Launch a kernel of numba.cuda."""
    import numpy as np  # type: ignore[import-not-found,unused-ignore]
    from numba import cuda  # type: ignore[import-not-found,unused-ignore]

    @cuda.jit  # type: ignore[untyped-decorator,unused-ignore]
    def numba_kernel(data: Any) -> None:
        i = cuda.grid(1)
        if i < data.size:
            data[i] = data[i] * 1.0001 + 0.5

    data = cuda.to_device(np.zeros(COUNT, np.float32))

    def step() -> None:
        for _ in range(4):
            numba_kernel[COUNT // THREADS, THREADS](data)
        cuda.synchronize()

    return step, ["numba_kernel"]


def cuda_python() -> Made:
    """Compile by NVRTC and launch by the driver's functions, with the bindings of cuda-python."""
    import ctypes

    from cuda.bindings import driver, nvrtc  # type: ignore[import-not-found,unused-ignore]

    def done(result: Any) -> Any:
        if int(result[0]):
            raise RuntimeError(str(result[0]))
        return result[1] if len(result) == 2 else result[1:]

    done(driver.cuInit(0))
    context = done(driver.cuDevicePrimaryCtxRetain(done(driver.cuDeviceGet(0))))
    done(driver.cuCtxSetCurrent(context))
    program = done(nvrtc.nvrtcCreateProgram((SOURCE % "bound_kernel").encode(), b"bound.cu", 0, [], []))
    done(nvrtc.nvrtcCompileProgram(program, 1, [b"--gpu-architecture=sm_90"]))
    cubin = b" " * done(nvrtc.nvrtcGetCUBINSize(program))
    done(nvrtc.nvrtcGetCUBIN(program, cubin))
    kernel = done(driver.cuModuleGetFunction(done(driver.cuModuleLoadData(cubin)), b"bound_kernel"))
    data = done(driver.cuMemAlloc(4 * COUNT))
    arguments = (int(data), COUNT), (ctypes.c_void_p, ctypes.c_int)

    def step() -> None:
        for _ in range(4):
            done(driver.cuLaunchKernel(kernel, COUNT // THREADS, 1, 1, THREADS, 1, 1, 0, 0, arguments, 0))
        done(driver.cuCtxSynchronize())

    return step, ["bound_kernel"]


def other(kind: str, *names: str) -> Callable[[], Made]:
    """Return a kind of the other experiments."""
    return lambda: (OTHERS[kind](), [*names])


KINDS: dict[str, Callable[[], Made]] = {
    "torch_eager": torch_eager,
    "torch_light": torch_light,
    "cupy_raw": cupy_raw,
    "numba": numba_jit,
    "cuda_python": cuda_python,
    "triton_softmax": other("triton_softmax", "_softmax"),
    **{kind: other(kind) for kind in OTHERS if kind != "triton_softmax"},
}


def profiled(step: Step) -> list[str]:
    """Return the names of the kernels in some steps, by PyTorch's profiler."""
    from torch.profiler import ProfilerActivity, profile  # type: ignore[import-not-found,unused-ignore]

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(PROFILED_STEPS):
            step()
    names = {each.name for each in profiler.events() if str(each.device_type).endswith("CUDA")}
    return sorted(name for name in names if not name.startswith(("Memcpy", "Memset", "cuda")))


def say(event: str, **values: object) -> None:
    print(json.dumps({"event": event, **values}), flush=True)


def main() -> None:
    """Work until SIGTERM."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--pause", type=float, default=0.005, help="seconds after each step")
    options = parser.parse_args()
    ended = False

    def end(*_: object) -> None:
        nonlocal ended
        ended = True

    signal.signal(signal.SIGTERM, end)
    try:
        step, names = KINDS[options.kind]()
        for _ in range(WARM_UP_STEPS):
            step()
    except Exception as problem:
        say("failed", why=repr(problem)[:500])
        raise SystemExit(1) from problem
    say("ready")
    steps = WARM_UP_STEPS
    while not ended:
        step()
        steps += 1
        time.sleep(options.pause)
    try:
        names = names or (profiled(step) if options.kind.startswith("torch") else [])
    except Exception as problem:
        say("unprofiled", why=repr(problem)[:300])
    say("kernels", names=names)
    say("done", steps=steps)


if __name__ == "__main__":
    main()
