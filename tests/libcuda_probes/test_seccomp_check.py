"""The collector attaches no probes if the kernel would kill probed clients."""

import platform
from pathlib import Path

import pytest

from exporter.collectors.proc import INITIAL_PID_NAMESPACE, Proc
from exporter.libcuda_probes.collector import LibcudaCollector
from exporter.libcuda_probes.libraries import Libraries
from exporter.libcuda_probes.loader import BpfError, Kernel
from exporter.libcuda_probes.probes import LibcudaProbes
from exporter.libcuda_probes.seccomp_check import check_seccomp
from exporter.model.launches import NodeGpus
from exporter.model.reason import Reason, ReasonCode
from tests.clocks import HandClock

from .process_work import SMS, boot_ns
from .standin import Program, StandInCuda, Work, code_at
from .test_collector import MACHINES

DIES = bytes.fromhex("b84f0100000f05c3")
"""Calls uretprobe directly and is killed, like a client whose seccomp filter forbids that call."""

FAILS = bytes.fromhex("bf05000000b83c0000000f05")
"""Exits with 5 before the probe runs."""

x86_64 = pytest.mark.skipif(platform.machine() != "x86_64", reason="NOT RUN: only x86-64 has that call")


def test_client_with_a_seccomp_filter_survives(kernel: Kernel) -> None:
    probes = LibcudaProbes(kernel, boot_ns, SMS)
    try:
        check_seccomp(probes, platform.machine())
        assert not list(probes.read())
    finally:
        probes.close()


@x86_64
@pytest.mark.parametrize(
    ("function", "words"), [(DIES, "which kills clients in containers"), (FAILS, "exit code 5")], ids=["dies", "fails"]
)
def test_reports_a_failed_seccomp_check(kernel: Kernel, function: bytes, words: str) -> None:
    probes = LibcudaProbes(kernel, boot_ns, SMS)
    try:
        with pytest.raises(BpfError, match=words):
            check_seccomp(probes, "x86_64", function)
    finally:
        probes.close()


@pytest.mark.usefixtures("kernel")
def test_attaches_nothing_after_a_failed_check_and_checks_once(cuda: StandInCuda) -> None:
    checked: list[str] = []

    def harmful(_: LibcudaProbes, machine: str) -> None:
        checked.append(machine)
        raise BpfError("this kernel kills clients")

    clock = HandClock()
    proc = Proc(Path("/proc"), clock)
    libraries = Libraries(proc, clock, MACHINES[platform.machine()], (cuda.library,))
    collector = LibcudaCollector(
        uses=lambda: (),
        gpus=lambda: NodeGpus(SMS),
        libraries=libraries,
        proc=proc,
        clock=clock,
        boot_ns=boot_ns,
        check_seccomp=harmful,
    )
    refused = Reason(ReasonCode.PROBES_REFUSED, detail="this kernel kills clients")
    with cuda.started(Work()) as target:
        for _ in range(3):
            reading = collector.collect()
            assert (reading.observations, reading.problem) == ((), refused)
        assert unprobed(target, cuda)
    collector.close()
    assert checked == [platform.machine()]


def test_attaches_nothing_outside_the_hosts_pid_namespace(cuda: StandInCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel reports PIDs of the host, which are those of other processes there."""
    monkeypatch.setattr(Proc, "pid_namespace", lambda *_: INITIAL_PID_NAMESPACE - 1)
    clock = HandClock()
    proc = Proc(Path("/proc"), clock)
    collector = LibcudaCollector(
        uses=lambda: (),
        gpus=lambda: NodeGpus(SMS),
        libraries=Libraries(proc, clock, MACHINES[platform.machine()], (cuda.library,)),
        proc=proc,
        clock=clock,
        boot_ns=boot_ns,
    )
    reading = collector.collect()
    assert reading.observations == ()
    assert reading.problem is not None
    assert "hostPID: true" in reading.problem.parameters["detail"]
    collector.close()


def unprobed(target: Program, cuda: StandInCuda) -> bool:
    code = cuda.library.read_bytes()
    return all(code_at(target.pid, cuda.library, at) == code[at : at + 1] for at in cuda.offsets().values())
