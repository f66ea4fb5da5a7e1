"""A client of a framework (`torch`, `jax`, `cupy`). It begins when a line comes, and faults once $GO exists."""

import ctypes
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

MIB = 1 << 20

KERNEL = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry access(.param .u64 where, .param .u32 how) {
  .reg .u64 %p; .reg .u32 %how, %value; .reg .pred %is;
  ld.param.u64 %p, [where]; ld.param.u32 %how, [how];
  setp.eq.u32 %is, %how, 0; @%is st.volatile.global.u32 [%p], 1;
  setp.eq.u32 %is, %how, 1; @%is ld.volatile.global.u32 %value, [%p];
  setp.eq.u32 %is, %how, 2; @%is atom.global.add.u32 %value, [%p], 1;
  ret;
}
"""


def say(event: str, **values: object) -> None:
    """Report an event to the runner."""
    print(json.dumps({"event": event, "pid": os.getpid(), **values}), flush=True)


def use_context(device: int = 0) -> ctypes.CDLL:
    """Make the context of the framework, which is the primary one, that of this thread. Return the CUDA driver."""
    cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    return cuda


def access(where: int, how: str, device: int = 0) -> None:
    """Launch a kernel of the framework's context that accesses an address."""
    cuda = use_context(device)
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    assert cuda.cuModuleLoadData(ctypes.byref(module), KERNEL) == 0
    assert cuda.cuModuleGetFunction(ctypes.byref(function), module, b"access") == 0
    address, number = ctypes.c_uint64(where), ctypes.c_uint32(("write", "read", "atomic").index(how))
    arguments = (ctypes.c_void_p * 2)(*(ctypes.cast(ctypes.byref(each), ctypes.c_void_p) for each in (address, number)))
    assert cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, arguments, None) == 0


class Torch:
    """PyTorch, with the allocator that PYTORCH_CUDA_ALLOC_CONF chooses."""

    def __init__(self) -> None:
        self._torch = importlib.import_module("torch")

    def begin(self, mib: int) -> int:
        """Allocate, and return the address of the tensor."""
        self._matrix = self._torch.randn(2048, 2048, device="cuda")
        self._tensor = self._torch.zeros(mib * MIB // 4, device="cuda")
        return int(self._tensor.data_ptr())

    def work(self) -> None:
        """Multiply, and wait for the result."""
        self._matrix @ self._matrix
        self.wait()

    def wait(self) -> None:
        """Wait for the GPU."""
        self._torch.cuda.synchronize()

    def freed(self) -> int:
        """Allocate a tensor, free it, and return its address."""
        extra = self._torch.zeros(300 * MIB, dtype=self._torch.uint8, device="cuda")
        self.wait()
        where = int(extra.data_ptr())
        del extra
        self._torch.cuda.empty_cache()
        return where + MIB


class Jax:
    """JAX. XLA_PYTHON_CLIENT_PREALLOCATE chooses whether it takes most of the memory at once."""

    def __init__(self) -> None:
        self._jax = importlib.import_module("jax")
        self._numpy = importlib.import_module("jax.numpy")

    def begin(self, mib: int) -> int:
        """Allocate, and return the address of the array."""
        self._matrix = self._numpy.ones((2048, 2048))
        self._array = self._numpy.zeros(mib * MIB // 4).block_until_ready()
        return int(self._array.unsafe_buffer_pointer())

    def work(self) -> None:
        """Multiply, and wait for the result."""
        (self._matrix @ self._matrix).block_until_ready()

    def wait(self) -> None:
        """Wait for the GPU."""
        assert use_context().cuCtxSynchronize() == 0

    def freed(self) -> int:
        """Return an address that was never allocated, because JAX does not return memory."""
        return int(self._array.unsafe_buffer_pointer()) + (3 << 30)


class Cupy:
    """CuPy with its memory pool."""

    def __init__(self) -> None:
        self._cupy = importlib.import_module("cupy")

    def begin(self, mib: int) -> int:
        """Allocate, and return the address of the array."""
        self._matrix = self._cupy.ones((2048, 2048), dtype="f")
        self._array = self._cupy.zeros(mib * MIB // 4, dtype="f")
        return int(self._array.data.ptr)

    def work(self) -> None:
        """Add, and wait for the result."""
        self._matrix += 1
        self.wait()

    def wait(self) -> None:
        """Wait for the GPU."""
        self._cupy.cuda.Device().synchronize()

    def freed(self) -> int:
        """Allocate an array, free it, and return its address."""
        extra = self._cupy.zeros(300 * MIB, dtype="u1")
        where = int(extra.data.ptr)
        del extra
        self._cupy.get_default_memory_pool().free_all_blocks()
        return where + MIB


def run(framework: Any, environment: Any) -> None:
    """Work until the process ends, and cause the fault that the environment demands."""
    kind, mib, faulted = environment.get("FAULT", ""), int(environment.get("MIB", "512")), False
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
    base = framework.begin(mib)
    framework.work()
    say("ready", buffers=[[base, mib * MIB]])
    places: dict[str, Callable[[], int]] = {
        "freed": framework.freed,
        "past": lambda: base + mib * MIB + int(kind.split(":")[2]),
        "before": lambda: base - int(kind.split(":")[2]),
    }
    try:
        while not ended:
            if environment.get("BUSY") == "1":
                framework.work()
            else:
                time.sleep(0.002)
            if kind and not faulted and os.path.exists(environment["GO"]):
                where = places[kind.partition(":")[0]]()
                say("fault", address=where)
                access(where, environment.get("HOW", "write"))
                faulted = True
            framework.wait()
    except Exception as error:
        say("error", name=str(error)[:80])
        os._exit(1)
    os._exit(0)


def main(name: str) -> None:
    """Import the framework, wait for a line, and run; with $WORKERS, as so many forked workers."""
    framework = {"torch": Torch, "jax": Jax, "cupy": Cupy}[name]()
    if not sys.stdin.readline():
        return
    workers, culprit = int(os.environ.get("WORKERS", "0")), int(os.environ.get("CULPRIT", "-1"))
    for number in range(workers):
        if os.fork() == 0:
            environment = {**os.environ, "FAULT": os.environ["FAULT"] if number == culprit else ""}
            say("worker", number=number, pid=os.getpid())
            run(framework, environment)
    if not workers:
        run(framework, os.environ)
    for _ in range(workers):
        os.wait()


if __name__ == "__main__":
    main(sys.argv[1])
