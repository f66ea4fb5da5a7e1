"""Fixtures: a stand-in libcuda, and probes on it if the kernel permits them."""

import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from exporter.collectors.proc import INITIAL_PID_NAMESPACE, Proc
from exporter.libcuda_probes.collector import LibcudaCollector
from exporter.libcuda_probes.handles import Handles
from exporter.libcuda_probes.libraries import Libraries
from exporter.libcuda_probes.loader import Kernel
from exporter.libcuda_probes.probes import Group, LibcudaProbes
from exporter.libcuda_probes.recorder import KernelRecorder
from exporter.model.kernels import KernelName, KernelReading
from exporter.model.launches import WorkReading
from exporter.model.sharing import GpuUse, NodeGpus
from exporter.parse.elf import Machine
from tests.clocks import HandClock
from tests.tools import not_here

from .bpf_permission import refusal
from .process_work import SMS, boot_ns
from .standin import StandInCuda

MACHINES = {"x86_64": Machine.X86_64, "aarch64": Machine.ARM64}
USE = GpuUse(at=1.0, gpu="GPU-1", seconds=1.0, sm_utilization=0.5)


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


class ReusableProbes(LibcudaProbes):
    """Probes that are as new after `close`: the kernel needs half a second to check the programs."""

    def close(self) -> None:
        for group in Group:
            self.pause(group)
        self.limit_sms({})
        self.forget([work.pid for work in self.read()])

    def unload(self) -> None:
        super().close()


@pytest.fixture(scope="session")
def loaded(kernel: Kernel) -> Iterator[ReusableProbes]:
    probes = ReusableProbes(kernel, boot_ns, SMS)
    yield probes
    probes.unload()


@pytest.fixture
def detached(loaded: ReusableProbes) -> Iterator[LibcudaProbes]:
    """Probes that are not attached yet."""
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def probes(loaded: ReusableProbes, cuda: StandInCuda) -> Iterator[LibcudaProbes]:
    """Attach probes to all functions, once for each test file."""
    loaded.attach(str(cuda.library), cuda.offsets())
    loaded.begin()
    yield loaded
    loaded.close()


def recorder() -> KernelRecorder:
    """Return a recorder for processes of one tenant, with the names as the programs have them."""
    return KernelRecorder(
        Handles(lambda _: 1, lambda _: "user"), lambda raws: {raw: KernelName(raw=raw, short=raw) for raw in raws}
    )


@dataclass(slots=True)
class TimedCollector:
    """A collector and its clock."""

    collector: LibcudaCollector
    clock: HandClock

    def after(self, seconds: float) -> WorkReading:
        """Advance the clock, collect without a problem, and return the work."""
        self.clock.time += seconds
        reading = self.collector.collect()
        assert reading.problem is None
        work, *uses = (each for each in reading.observations if not isinstance(each, KernelReading))
        assert uses == [USE]
        assert isinstance(work, WorkReading)
        return work


@pytest.fixture
def start_collector(
    detached: LibcudaProbes, cuda: StandInCuda, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., TimedCollector]]:
    """Return a function that starts a collector. By default the stand-in is the node's own library."""
    monkeypatch.setattr("exporter.libcuda_probes.collector.LibcudaProbes", lambda *_, **__: detached)
    made: list[LibcudaCollector] = []

    def start(nodes_own: tuple[Path, ...] = (cuda.library,), **options: Any) -> TimedCollector:
        clock = HandClock()
        proc = Proc(Path("/proc"), clock)
        made.append(
            LibcudaCollector(
                **{"uses": lambda: (USE,), "gpus": lambda: NodeGpus(SMS), **options},
                libraries=Libraries(proc, clock, MACHINES[platform.machine()], nodes_own),
                proc=proc,
                clock=clock,
                boot_ns=boot_ns,
                recorder=recorder(),
            )
        )
        return TimedCollector(made[-1], clock)

    yield start
    for each in made:
        each.close()
