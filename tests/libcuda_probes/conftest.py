"""Fixtures: a stand-in libcuda, and probes on it if the kernel permits them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.collectors.proc import INITIAL_PID_NAMESPACE
from exporter.libcuda_probes.loader import Kernel
from exporter.libcuda_probes.probes import LibcudaProbes
from tests.tools import not_here

from .bpf_permission import refusal
from .process_work import SMS, boot_ns
from .standin import StandInCuda


@pytest.fixture(scope="session")
def cuda(tmp_path_factory: pytest.TempPathFactory) -> StandInCuda:
    return StandInCuda(tmp_path_factory.mktemp("cuda"))


@pytest.fixture(scope="session")
def kernel() -> Kernel:
    """Return the BPF loader. Skip the test if the kernel forbids BPF, which is checked without the loader."""
    if Path("/proc/self/ns/pid").stat().st_ino != INITIAL_PID_NAMESPACE:
        not_here("the kernel reports PIDs of the host, and this is another PID namespace")
    refused = refusal()
    if refused is not None:
        not_here(f"this kernel does not permit BPF programs and uprobes: {refused}")
    return Kernel()


@pytest.fixture(scope="module")
def probes(kernel: Kernel, cuda: StandInCuda) -> Iterator[LibcudaProbes]:
    """Attach probes to all functions, once for each test file: the kernel needs seconds to remove them."""
    probes = LibcudaProbes(kernel, boot_ns, SMS)
    try:
        probes.attach(str(cuda.library), cuda.offsets())
        probes.begin()
        yield probes
    finally:
        probes.close()
