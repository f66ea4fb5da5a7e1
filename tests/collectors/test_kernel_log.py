"""The kernel log: driver messages about GPUs, OOM kills, bounded waits, and problems with the device file."""

import errno
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from exporter.collectors.kernel_log import MAX_RECORDS, KernelLog, last_records
from exporter.collectors.thread import Reading
from exporter.model.node import CollectorName
from exporter.model.observation import KernelRecord
from exporter.model.reason import Reason, ReasonCode, of_error
from exporter.report.reasons import reason_text
from tests.builders import denied
from tests.clocks import HandClock

XID = "NVRM: Xid (PCI:0000:00:06): 31, pid=471, name=c_two, channel 0x0000001d, intr 00000000. MMU Fault"
GPU_AT = "NVRM: GPU at PCI:0000:00:06: GPU-22cc6aea-2c9e-48a9-4c41-c6bac08fa8c1"
FALLEN_OFF_THE_BUS = "NVRM: The NVIDIA GPU 0000:01:00.0 has fallen off the bus."
KILLED = "Memory cgroup out of memory: Killed process 471 (train) total-vm:9kB, anon-rss:8kB, file-rss:0kB"

KMSG = Path("/dev/kmsg")
UNPRIVILEGED_UID = 65534


@dataclass(slots=True)
class Kernel:
    """A kernel log whose records are read one at a time, as from /dev/kmsg."""

    clock: HandClock = field(default_factory=HandClock)
    opened: int = 0
    sequence: int = 0
    end: socket.socket | None = None

    def open(self, _path: Path) -> int:
        self.opened += 1
        self.end, reader = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        reader.setblocking(False)
        return reader.detach()

    def write(self, text: str, prefix: int = 4) -> None:
        assert self.end is not None
        self.sequence += 1
        self.end.send(f"{prefix},{self.sequence},27859548,c;{text}\n".encode())

    def close_log(self) -> None:
        assert self.end is not None
        self.end.close()


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    """A kernel log that no process has opened."""
    fake = Kernel()
    yield fake
    if fake.end is not None:
        fake.end.close()


@pytest.fixture
def log(kernel: Kernel) -> Iterator[KernelLog]:
    """The opened collector of the kernel log."""
    collector = KernelLog(KMSG, kernel.clock, wait=0.0, opener=kernel.open)
    assert collector.open() is None
    yield collector
    collector.close()


def messages(reading: Reading) -> list[str]:
    records = reading.observations
    return [each.record.partition(";")[2] for each in records if isinstance(each, KernelRecord)]


def test_reports_only_gpu_messages_of_the_driver_and_oom_kills(kernel: Kernel, log: KernelLog) -> None:
    others = ("NVRM: GPU Board Serial Number: 4711", "usb 1-1: Product: " + XID, "usb 1-1: Product: " + KILLED)
    for text in (GPU_AT, XID, *others, FALLEN_OFF_THE_BUS, "oom-kill: x", KILLED):
        kernel.write(text)

    assert messages(log.collect()) == [GPU_AT, XID, FALLEN_OFF_THE_BUS, KILLED]
    assert log.collect() == Reading()


def test_reports_the_unchanged_record_with_its_time(kernel: Kernel, log: KernelLog) -> None:
    kernel.clock.time = 1234.5
    kernel.write(XID + "\n SUBSYSTEM=pci")

    assert log.collect().observations == (KernelRecord(at=1234.5, record=f"4,1,27859548,c;{XID}\n SUBSYSTEM=pci"),)


@pytest.mark.parametrize("prefix", [8, 12, 30])
def test_ignores_records_that_a_program_wrote(kernel: Kernel, log: KernelLog, prefix: int) -> None:
    kernel.write(XID, prefix)
    kernel.write(KILLED, prefix)

    assert log.collect() == Reading()


def test_returns_at_once_if_a_record_is_available(kernel: Kernel) -> None:
    collector = KernelLog(KMSG, kernel.clock, wait=600.0, opener=kernel.open)
    assert collector.open() is None
    kernel.write(XID)

    assert messages(collector.collect()) == [XID]
    collector.close()


def test_limits_the_records_of_one_collection(kernel: Kernel, log: KernelLog, monkeypatch: pytest.MonkeyPatch) -> None:
    record = f"4,1,2,-;{XID}\n".encode()
    monkeypatch.setattr("exporter.collectors.kernel_log.os.read", lambda _descriptor, _bytes: record)

    assert len(log.collect().observations) == MAX_RECORDS


def test_reports_lost_records_and_reads_the_rest(
    kernel: Kernel, log: KernelLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel.write(XID)
    read, answers = os.read, [BrokenPipeError(errno.EPIPE, "Broken pipe")]

    def overwritten(descriptor: int, most: int) -> bytes:
        if answers:
            raise answers.pop()
        return read(descriptor, most)

    monkeypatch.setattr("exporter.collectors.kernel_log.os.read", overwritten)

    first = log.collect()
    assert (messages(first), first.problem) == ([XID], Reason(ReasonCode.RECORDS_LOST, subject="/dev/kmsg"))
    assert log.collect() == Reading()


def test_reopens_a_log_that_ends(kernel: Kernel, log: KernelLog) -> None:
    kernel.write(XID)
    kernel.close_log()

    reading = log.collect()
    assert messages(reading) == [XID]
    assert reading.problem == Reason(ReasonCode.NOT_READABLE, subject="/dev/kmsg")
    assert log.collect() == Reading()
    kernel.write(GPU_AT)
    assert messages(log.collect()) == [GPU_AT]
    assert kernel.opened == 2


def test_skips_malformed_records(kernel: Kernel, log: KernelLog) -> None:
    assert kernel.end is not None
    for raw in (b"\xff\xfe\x00", b"\n", b";;;", b"4,1,2,-;" + XID.encode() + b"\xff", b"9" * 8192):
        kernel.end.send(raw)

    assert messages(log.collect()) == [XID + "\N{REPLACEMENT CHARACTER}"]


# -- unreadable log ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EPERM, "needs CAP_SYSLOG"),
        (errno.EACCES, "kernel-log.conf"),
        (errno.ENOENT, "container needs the device"),
    ],
)
def test_the_problem_text_names_the_remedy(number: int, advice: str) -> None:
    def refuse(_path: Path) -> int:
        raise OSError(number, os.strerror(number))

    log = KernelLog(KMSG, HandClock(), wait=0.0, opener=refuse)

    problem = log.collect().problem
    assert problem == log.open() == of_error(KMSG, OSError(number, os.strerror(number)))
    assert advice in reason_text(problem, CollectorName.KERNEL)


def test_tries_to_open_the_log_again(kernel: Kernel) -> None:
    refusals = [PermissionError(errno.EPERM, "Operation not permitted")]

    def refuse_once(path: Path) -> int:
        if refusals:
            raise refusals.pop()
        return kernel.open(path)

    log = KernelLog(KMSG, kernel.clock, wait=0.0, opener=refuse_once)

    assert log.collect().problem is not None
    assert log.collect() == Reading()
    kernel.write(XID)
    assert messages(log.collect()) == [XID]
    log.close()


def test_reports_a_missing_log(tmp_path: Path) -> None:
    log = KernelLog(tmp_path / "kmsg", HandClock(), wait=0.0)

    problem = log.collect().problem
    assert problem is not None
    assert problem.code is ReasonCode.NOT_FOUND


def test_reports_a_log_without_read_permission(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.touch(mode=0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(UNPRIVILEGED_UID)
    try:
        problem = KernelLog(path, HandClock(), wait=0.0).collect().problem
    finally:
        os.seteuid(user)

    assert problem == denied(path)


@pytest.mark.parametrize("kind", ["file", "fifo", "device", "directory", "link to a device"])
def test_rejects_a_file_that_is_not_the_kernel_log(tmp_path: Path, kind: str) -> None:
    """Some containers have another file at this path, which would never have a record."""
    path = tmp_path / "kmsg"
    if kind == "file":
        path.write_text(f"4,1,2,-;{XID}\n")
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("/dev/null")
    before = len(os.listdir("/proc/self/fd"))

    reading = KernelLog(Path("/dev/null") if kind == "device" else path, HandClock(), wait=0.0).collect()

    assert reading.problem is not None
    assert reading.problem.code is ReasonCode.WRONG_FILE_TYPE
    assert reading.observations == ()
    assert len(os.listdir("/proc/self/fd")) == before


def test_reads_the_real_log_or_reports_a_problem() -> None:
    log = KernelLog(KMSG, HandClock(), wait=0.0)

    for _ in range(2):
        problem = log.collect().problem
        assert problem is None or problem.parameters.get("subject") == "/dev/kmsg"
        assert log.open() == problem
        log.close()


# -- earlier records -------------------------------------------------------------------------------------------------


def test_returns_the_last_records_about_gpus_and_oom_kills(kernel: Kernel) -> None:
    reader = kernel.open(KMSG)
    for text in (XID, "usb 1-1: new device", KILLED, GPU_AT, FALLEN_OFF_THE_BUS):
        kernel.write(text)
    kernel.write(XID, prefix=12)

    records = last_records(KMSG, 2, opener=lambda *_: reader)

    assert [each.partition(";")[2] for each in records] == [GPU_AT, FALLEN_OFF_THE_BUS]


def test_returns_no_earlier_records_of_another_file(tmp_path: Path) -> None:
    file = tmp_path / "kmsg"
    file.write_text(f"4,1,1,-;{XID}\n")

    with pytest.raises(OSError, match="not the kernel log"):
        last_records(file, 2)


@pytest.mark.parametrize("apart", [False, True])
def test_a_record_says_whether_its_pids_are_of_another_namespace(kernel: Kernel, apart: bool) -> None:
    collector = KernelLog(KMSG, kernel.clock, wait=0.0, opener=kernel.open, apart=apart)
    collector.collect()
    kernel.write(XID)
    assert [each.apart for each in collector.collect().observations if isinstance(each, KernelRecord)] == [apart]
    collector.close()
