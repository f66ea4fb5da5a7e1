"""The collector attaches no probes if the kernel would kill probed clients."""

import platform
from collections.abc import Callable

import pytest

from exporter.collectors.proc import INITIAL_PID_NAMESPACE, Proc
from exporter.libcuda_probes.loader import BpfError
from exporter.libcuda_probes.probes import LibcudaProbes
from exporter.libcuda_probes.seccomp_check import check_seccomp
from exporter.model.reason import Reason, ReasonCode

from .conftest import TimedCollector
from .standin import Program, StandInCuda, Work, code_at

DIES = bytes.fromhex("b84f0100000f05c3")
"""Calls uretprobe directly and is killed, like a client whose seccomp filter forbids that call."""

FAILS = bytes.fromhex("bf05000000b83c0000000f05")
"""Exits with 5 before the probe runs."""

x86_64 = pytest.mark.skipif(platform.machine() != "x86_64", reason="NOT RUN: only x86-64 has that call")


def test_client_with_a_seccomp_filter_survives(detached: LibcudaProbes) -> None:
    check_seccomp(detached, platform.machine())
    assert not list(detached.read())


@x86_64
@pytest.mark.parametrize(
    ("function", "words"), [(DIES, "which kills clients in containers"), (FAILS, "exit code 5")], ids=["dies", "fails"]
)
def test_reports_a_failed_seccomp_check(detached: LibcudaProbes, function: bytes, words: str) -> None:
    with pytest.raises(BpfError, match=words):
        check_seccomp(detached, "x86_64", function)


def test_attaches_nothing_after_a_failed_check_and_checks_once(
    start_collector: Callable[..., TimedCollector], cuda: StandInCuda
) -> None:
    checked: list[str] = []

    def harmful(_: LibcudaProbes, machine: str) -> None:
        checked.append(machine)
        raise BpfError("this kernel kills clients")

    collector = start_collector(check_seccomp=harmful).collector
    refused = Reason(ReasonCode.PROBES_REFUSED, detail="this kernel kills clients")
    with cuda.started(Work()) as target:
        for _ in range(3):
            reading = collector.collect()
            assert (reading.observations, reading.problem) == ((), refused)
        assert unprobed(target, cuda)
    assert checked == [platform.machine()]


def test_attaches_nothing_outside_the_hosts_pid_namespace(
    start_collector: Callable[..., TimedCollector], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel reports PIDs of the host, which are those of other processes there."""
    monkeypatch.setattr(Proc, "pid_namespace", lambda *_: INITIAL_PID_NAMESPACE - 1)
    reading = start_collector().collector.collect()
    assert reading.observations == ()
    assert reading.problem is not None
    assert "hostPID: true" in reading.problem.parameters["detail"]


def unprobed(target: Program, cuda: StandInCuda) -> bool:
    code = cuda.library.read_bytes()
    return all(code_at(target.pid, cuda.library, at) == code[at : at + 1] for at in cuda.offsets().values())
