"""A stand-in libcuda, and a watcher at its doors, where the kernel allows one."""

from collections.abc import Iterator

import pytest

from exporter.libcuda_probes.loader import Kernel
from exporter.libcuda_probes.probes import LibcudaProbes
from tests.tools import not_here

from .bpf_permission import refusal
from .process_work import SMS, boot_ns
from .standin import StandInCuda


@pytest.fixture(scope="session")
def cuda(tmp_path_factory: pytest.TempPathFactory) -> StandInCuda:
    """The library and its programs."""
    return StandInCuda(tmp_path_factory.mktemp("cuda"))


@pytest.fixture(scope="session")
def kernel() -> Kernel:
    """What loads BPF programs. Whether this machine lets anybody do so, is asked without it."""
    refused = refusal()
    if refused is not None:
        not_here(f"this kernel does not let us load BPF programs and probe functions: {refused}")
    return Kernel()


@pytest.fixture(scope="module")
def watcher(kernel: Kernel, cuda: StandInCuda) -> Iterator[LibcudaProbes]:
    """Watches all doors of the library. It is kept for all tests of a file: to let go takes the kernel seconds."""
    watcher = LibcudaProbes(kernel, boot_ns, SMS)
    try:
        watcher.attach(str(cuda.library), cuda.offsets())
        watcher.begin()
        yield watcher
    finally:
        watcher.close()
