"""Illegal addresses, with the kernel's lines, all clients' address ranges and the incidents of `serve`.

    python3 -m lab.fault_address.trials GPUS OUT SECONDS [KINDS [RECORDED [CROWD]]]

GPUS is the number of one GPU, or of two with a comma, which then share a daemon.
"""

import contextlib
import gzip
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from lab.gpu.clients import NO_DAEMON

HERE = Path(__file__).parent
MIB, GIB = 1 << 20, 1 << 30
SETTLE_SECONDS = 1.2
XID_SECONDS = 1.0
"""The kernel reports the first access that failed after 0.2 s at most."""
INCIDENT_SECONDS = 1.6
"""How long the incident can change: the probes are read once a second."""
PROBES_SECONDS = 10.0
RECOVERY_SECONDS = 3.0
FIRST_PORT = 19400
ACCESSES = ("write", "write", "read", "atomic")


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One way to cause an illegal address; `environment` is of the culprit, `others` of one of its neighbours."""

    name: str
    fault: str
    program: str = "cuda"
    environment: Mapping[str, str] = field(default_factory=dict)
    others: Mapping[str, str] = field(default_factory=dict)
    prefix: Sequence[str] = ()
    for_all: bool = False
    """Whether the prefix is for all clients."""
    workers: int = 0
    devices: Sequence[str] = ()
    """On two GPUs, the GPUs of each client; `place` is that of the culprit."""
    place: int = 0


def cuda(name: str, fault: str, way: str = "malloc", *, more: Mapping[str, str] | None = None, **options: Any) -> Kind:
    """Return a kind of the client of the CUDA runtime."""
    return Kind(name=name, fault=fault, environment={"ALLOCATE": way, **(more or {})}, **options)


NO_LAYOUT = ("setarch", "-R")
OWN_PIDS = ("unshare", "--pid", "--fork", "--mount-proc")
PYTORCH = "PYTORCH_CUDA_ALLOC_CONF"

KINDS = (
    cuda("freed", "freed"),
    cuda("past-1g", f"past:1:{GIB}"),
    cuda("past-8g", f"past:2:{8 * GIB}"),
    cuda("past-32m", f"past:2:{32 * MIB}"),
    cuda("before-64m", f"before:2:{64 * MIB}"),
    cuda("before-8g", f"before:0:{8 * GIB}"),
    cuda("before-4m", f"before:1:{4 * MIB}"),
    cuda("host", "host"),
    cuda("random", "given"),
    cuda("null", f"null:{0x40}"),
    cuda("null-plus-1m", f"null:{MIB}"),
    cuda("null-plus-4g", f"null:{4 * GIB}"),
    cuda("vmm-past-16m", f"past:2:{16 * MIB}", "vmm"),
    cuda("vmm-freed", "freed", "vmm"),
    cuda("managed-past-1g", f"past:1:{GIB}", "managed"),
    cuda("async-freed", "freed", "async"),
    cuda("async-past-1g", f"past:2:{GIB}", "async"),
    cuda("ipc-past-1g", f"shared:{GIB}", others={"EXPORT": "1"}),
    # The culprit uses an address where only a neighbour has memory: one of CUDA's choice (low), or one of the kernel's.
    cuda("framed-low-async", "given", others={"ALLOCATE": "async"}),
    cuda("framed-low-vmm", "given", others={"ALLOCATE": "vmm"}),
    cuda("framed-low-exit", "given", more={"EXIT_MS": "20"}, others={"ALLOCATE": "async"}),
    cuda("framed-high", "given"),
    cuda("framed-high-exit", "given", more={"EXIT_MS": "20"}),
    cuda("past-1g-reserving-neighbour", f"past:1:{GIB}", others={"RESERVE": "43"}),
    cuda("before-64m-reserving-neighbour", f"before:2:{64 * MIB}", others={"RESERVE": "43"}),
    cuda("past-1g-fixed-layout", f"past:1:{GIB}", prefix=NO_LAYOUT, for_all=True),
    cuda("before-64m-fixed-layout", f"before:2:{64 * MIB}", prefix=NO_LAYOUT, for_all=True),
    cuda("past-1g-container", f"past:1:{GIB}", prefix=OWN_PIDS),
    cuda("past-1g-foreign", f"past:1:{GIB}", more=NO_DAEMON),
    cuda("past-1g-and-foreign", f"past:1:{GIB}", others={**NO_DAEMON, "FAULT": f"past:1:{GIB}"}),
    cuda("null-and-foreign", f"null:{0x40}", others={**NO_DAEMON, "FAULT": f"past:1:{GIB}"}),
    cuda("past-1g-exit", f"past:1:{GIB}", more={"EXIT_MS": "0"}),
    cuda("past-1g-exit-20ms", f"past:1:{GIB}", more={"EXIT_MS": "20"}),
    cuda("forked-past-1g", f"past:1:{GIB}", workers=3),
    cuda("forked-spread-past-1g", f"past:1:{GIB}", more={"SPREAD": "1"}, workers=3),
    cuda("forked-spread-freed", "freed", more={"SPREAD": "1"}, workers=3),
    Kind(name="torch-past-256m", fault=f"past:0:{256 * MIB}", program="torch"),
    Kind(name="torch-past-1g", fault=f"past:0:{GIB}", program="torch"),
    Kind(name="torch-before-512m", fault=f"before:0:{512 * MIB}", program="torch"),
    Kind(name="torch-freed", fault="freed", program="torch"),
    Kind(
        name="torch-expandable-past-1g",
        fault=f"past:0:{GIB}",
        program="torch",
        environment={PYTORCH: "expandable_segments:True"},
    ),
    Kind(
        name="torch-expandable-freed", fault="freed", program="torch", environment={PYTORCH: "expandable_segments:True"}
    ),
    Kind(
        name="torch-async-past-1g",
        fault=f"past:0:{GIB}",
        program="torch",
        environment={PYTORCH: "backend:cudaMallocAsync"},
    ),
    Kind(name="torch-async-freed", fault="freed", program="torch", environment={PYTORCH: "backend:cudaMallocAsync"}),
    Kind(name="torch-forked-past-1g", fault=f"past:0:{GIB}", program="torch", workers=3),
    Kind(name="torch-forked-freed", fault="freed", program="torch", workers=3),
    Kind(
        name="jax-past-8g",
        fault=f"past:0:{8 * GIB}",
        program="jax",
        environment={"XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
    ),
    Kind(
        name="jax-preallocated-past-32g",
        fault=f"past:0:{32 * GIB}",
        program="jax",
        environment={"XLA_PYTHON_CLIENT_MEM_FRACTION": ".2"},
    ),
    Kind(name="cupy-past-1g", fault=f"past:0:{GIB}", program="cupy"),
    Kind(name="cupy-freed", fault="freed", program="cupy"),
    *(
        cuda(
            f"two-gpus-{name}-{'both' if place == 2 else 'one'}-on-{gpu}",
            fault,
            more={"FAULT_ON": gpu},
            devices=("0", "1", "0,1", "0", "1"),
            place=place,
        )
        for name, fault in (("past-1g", f"past:1:{GIB}"), ("freed", "freed"), ("before-64m", f"before:2:{64 * MIB}"))
        for place, gpu in ((0, "0"), (1, "1"), (2, "0"), (2, "1"))
    ),
)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A kind with its neighbours: how many there are, how many of them use PyTorch, and whether all work."""

    number: int
    kind: Kind
    count: int
    torch: int
    busy: bool
    how: str

    @property
    def place(self) -> int:
        """The culprit among the clients."""
        return self.kind.place if self.kind.devices else self.number * 7 % self.count

    @property
    def neighbour(self) -> int:
        """The client with the environment of `others`."""
        return 1 if self.place == 0 else 0

    def options(self, index: int) -> Mapping[str, str]:
        """Return what the kind adds to the environment of a client."""
        if self.kind.workers or index == self.place:
            return {**self.kind.environment, "FAULT": self.kind.fault}
        return self.kind.others if index == self.neighbour else {}

    def is_foreign(self, index: int) -> bool:
        """Return whether a client runs without MPS."""
        return self.options(index).items() >= NO_DAEMON.items()


def plan(seed: int, kinds: Sequence[Kind] = KINDS) -> Iterator[Trial]:
    """Yield trials without end: each round has all kinds, in another order."""
    chance, number = random.Random(seed), 0
    while True:
        for kind in chance.sample(kinds, len(kinds)):
            count = len(kind.devices) or chance.choice((2, 3, 3, 4, 4, 6, 8))
            if kind.program == "cuda" and number % 13 == 5 and not kind.devices:
                count = chance.choice((16, 24))
            torch = chance.choice((0, 0, 0, 1)) if count < 8 and not kind.devices else 0
            yield Trial(
                number=number,
                kind=kind,
                count=count,
                torch=torch,
                busy=chance.random() < 0.5,
                how=chance.choice(ACCESSES),
            )
            number += 1


class Client:
    """A client of a trial. Those of frameworks import, and wait; `begin` lets them use the GPU."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], output: Path) -> None:
        self.output = output
        self.errors = output.with_suffix(".err")
        with output.open("w") as file, self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                command, env=dict(environment), stdin=subprocess.PIPE, stdout=file, stderr=errors
            )

    def begin(self) -> "Client":
        """Let it use the GPU."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()
        return self

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return what it reported."""
        lines = [line for line in self.output.read_text().splitlines() if line.endswith("}")]
        return [each for each in map(json.loads, lines) if each["event"] == name]


def ranges(pid: int) -> list[list[Any]]:
    """Return start, end and kind of the mappings of a process: reserved, device, large anonymous, of a large file."""
    found: list[list[Any]] = []
    for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
        place, rights, _, _, inode, *name = line.split(maxsplit=5)
        start, end = (int(part, 16) for part in place.split("-"))
        device = bool(name) and name[0].startswith("/dev/nvidia")
        kind = "d" if device else "r" if rights == "---p" and inode == "0" else "a" if inode == "0" else "f"
        if device or end - start >= MIB or kind == "r":
            found.append([start, end, kind])
    return found


Starts = list[tuple[int, Callable[[], Client]]]
"""What starts each client, by its number."""


class KernelLog:
    """The lines of the kernel log about some GPUs."""

    def __init__(self, buses: Sequence[str]) -> None:
        self._buses = [bus.lower() for bus in buses]
        self._file = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
        os.lseek(self._file, 0, os.SEEK_END)

    def read(self) -> list[str]:
        """Return the new lines."""
        lines = []
        while True:
            try:
                lines.append(os.read(self._file, 16384).decode(errors="replace").rstrip())
            except BlockingIOError:
                return [line for line in lines if "NVRM" in line and ("Xid" not in line or self._is_of_gpus(line))]
            except BrokenPipeError:
                continue

    def _is_of_gpus(self, line: str) -> bool:
        return any(bus in line.lower() for bus in self._buses)


class Runner:
    """Runs trials with one daemon for some GPUs."""

    def __init__(self, gpus: str, directory: Path, program: Path) -> None:
        query = subprocess.run(
            ["nvidia-smi", f"--id={gpus}", "--query-gpu=uuid,pci.bus_id,name,driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=True,
        )
        rows = [[part.strip() for part in line.split(",")] for line in query.stdout.splitlines()]
        self._uuids, buses, (self.name, *_), (self.driver, *_) = zip(*rows, strict=True)
        self.recordings, self.recorded = directory / "recordings", frozenset[int]()
        self._log = KernelLog([bus[-10:-2] for bus in buses])
        self._directory = directory
        for each in (directory / "pipe", directory / "log", self.recordings):
            each.mkdir()
        self._environment = {
            **os.environ,
            "CUDA_MPS_PIPE_DIRECTORY": str(directory / "pipe"),
            "CUDA_MPS_LOG_DIRECTORY": str(directory / "log"),
            # MPS shows its clients its own GPUs alone, and PyTorch counts those of NVML.
            "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(len(rows)))),
        }
        self._program = program
        daemon = {**self._environment, "CUDA_VISIBLE_DEVICES": ",".join(self._uuids)}
        subprocess.run(["nvidia-cuda-mps-control", "-d"], env=daemon, check=True)
        address = f"127.0.0.1:{FIRST_PORT + int(gpus[0])}"
        self._url = f"http://{address}"
        self._exporter = self._program_of_exporter("serve", f"--web.listen-address={address}", "--attribution=bpf")

    def _program_of_exporter(self, *arguments: str) -> "subprocess.Popen[bytes]":
        """Start a command of the exporter for this daemon."""
        directory = self._directory / "exporter"
        (directory / "state").mkdir(parents=True, exist_ok=True)
        own = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_MPS_")}
        own |= {"RUNTIME_DIRECTORY": f"{directory}/run", "STATE_DIRECTORY": f"{directory}/state"}
        directories = (f"--{kind}-directory={self._directory / kind}" for kind in ("pipe", "log"))
        command = [sys.executable, "-m", "exporter", arguments[0], *directories, *arguments[1:]]
        with (self._directory / "exporter.log").open("a") as log:
            return subprocess.Popen(command, env=own, cwd=HERE.parents[1], stdout=log, stderr=log)

    def wait_for_probes(self) -> bool:
        """Wait until the exporter reads its probes, which must be attached before the first client begins."""
        limit = time.monotonic() + PROBES_SECONDS
        while time.monotonic() < limit:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self._url}/metrics", timeout=5) as answer:
                if b'cuda_mps_exporter_source_up{source="libcuda_probes"} 1' in answer.read():
                    return True
            time.sleep(0.2)
        return False

    def _incidents(self) -> list[dict[str, Any]]:
        """Return the newest incidents of this daemon. The exporter also finds the daemon of the other GPU."""
        with urllib.request.urlopen(f"{self._url}/api/v1/incidents?limit=9", timeout=5) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]
        return [each for each in found if each["daemon"] == str(self._directory / "pipe")]

    def log_of_exporter(self) -> str:
        """Return the end of the exporter's log."""
        return (self._directory / "exporter.log").read_text(errors="replace")[-4000:]

    def close(self) -> None:
        """End the exporter and the daemon."""
        self._exporter.terminate()
        self._exporter.wait()
        subprocess.run(["nvidia-cuda-mps-control"], input=b"quit -t 5\n", env=self._environment, check=False)

    def prepare(self, trial: Trial) -> Starts:
        """Return what starts each client. Those of frameworks run already, because they take long to import."""
        kind = trial.kind
        clients: list[tuple[int, Callable[[], Client]]] = []
        number = 1 if kind.workers else trial.count
        for index in range(number):
            culprit = kind.workers > 0 or index == trial.place
            environment = {
                **self._environment,
                "GO": str(self._go(trial)),
                "BUSY": "1" if trial.busy else "0",
                "HOW": trial.how,
                "MIB": str(min(4096, 40960 // trial.count) >> (index % 3)),
                **trial.options(index),
            }
            shared = str(self._directory / f"{trial.number}.handle")
            if "EXPORT" in environment:
                environment["EXPORT"] = shared
            if culprit and kind.fault.startswith("shared"):
                environment["IMPORT"] = shared
            if trial.is_foreign(index):
                environment["CUDA_VISIBLE_DEVICES"] = self._uuids[0]
            if kind.devices:
                environment["DEVICES"] = kind.devices[index]
            if kind.workers:
                environment.update(WORKERS=str(kind.workers), CULPRIT=str(trial.number % kind.workers), MIB="512")
            others = "torch" if trial.neighbour < index <= trial.neighbour + trial.torch else "cuda"
            framework = kind.program if culprit else others
            prefix = kind.prefix if culprit or kind.for_all else ()
            command = (
                [str(self._program)] if framework == "cuda" else [sys.executable, str(HERE / "client.py"), framework]
            )
            start = partial(Client, [*prefix, *command], environment, self._output(trial, index))
            clients.append((index, start if framework == "cuda" else start().begin))
        return clients

    def _go(self, trial: Trial) -> Path:
        return self._directory / f"{trial.number}.go"

    def _output(self, trial: Trial, index: int) -> Path:
        return self._directory / f"{trial.number}.{index}.txt"

    def run(self, trial: Trial, prepared: Starts) -> dict[str, Any]:
        """Run a trial, and return its truth and all readings."""
        clients: dict[int, Client] = {}
        result: dict[str, Any] = {
            "number": trial.number,
            "kind": trial.kind.name,
            "program": trial.kind.program,
            "count": trial.count,
            "torch": trial.torch,
            "busy": trial.busy,
            "how": trial.how,
            "gpu": self.name,
            "driver": self.driver,
        }
        recorder = None
        if trial.number in self.recorded:
            recorder = self._program_of_exporter(
                "record", str(self.recordings / f"{trial.number}.{trial.kind.name}.jsonl")
            )
        try:
            for index, start in prepared:
                clients[index] = start()
            self._cause(trial, clients, result)
        except Exception as error:
            result["failed"] = repr(error)
        finally:
            if recorder is not None:
                time.sleep(1)
                recorder.send_signal(2)
            self._end(clients.values())
            result["stuck"] = not self._recovers()
        return result

    def _end(self, clients: Collection[Client]) -> None:
        """End all clients. First ask them: one that is killed in mid-kernel causes another fault."""
        pids = [pid for client in clients for pid in (*descendants(client.process.pid), client.process.pid)]
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            limit = time.monotonic() + 1
            while number == signal.SIGTERM and time.monotonic() < limit and any(map(is_running, pids)):
                time.sleep(0.01)
        for client in clients:
            client.process.wait()
        time.sleep(0.1)

    def _recovers(self) -> bool:
        """Wait until the server is not in FAULT. If it stays there, which happens on two GPUs, end it."""
        limit = time.monotonic() + RECOVERY_SECONDS
        while "FAULT" in self._answer(f"get_server_status {(server := self._answer('get_server_list'))}"):
            if time.monotonic() > limit:
                self._answer(f"shutdown_server {server} -f")
                time.sleep(1)
                return False
            time.sleep(0.05)
        return True

    def _answer(self, command: str) -> str:
        """Return the answer of the control program, empty if there is none in time."""
        try:
            done = subprocess.run(
                ["nvidia-cuda-mps-control"],
                input=f"{command}\n",
                env=self._environment,
                capture_output=True,
                text=True,
                timeout=10,
            )
        except subprocess.TimeoutExpired:
            return ""
        return done.stdout.strip()

    def _cause(self, trial: Trial, clients: dict[int, Client], result: dict[str, Any]) -> None:
        expected = trial.kind.workers or len(clients)
        limit = time.monotonic() + 15

        def ready() -> list[tuple[int, dict[str, Any]]]:
            return [(index, event) for index, client in clients.items() for event in client.events("ready")]

        while len(ready()) < expected:
            if time.monotonic() > limit or (any(each.process.poll() is not None for each in clients.values())):
                errors = [each.errors.read_text()[-300:] for each in clients.values()]
                raise RuntimeError(f"only {len(ready())} of {expected} ready: {errors}")
            time.sleep(0.01)
        pids = []
        for index, event in ready():
            inner = trial.kind.prefix == OWN_PIDS and index == trial.place
            pid = event.get("pid") or clients[index].process.pid
            pids.append(descendants(pid)[0] if inner else pid)
        order = [index for index, _ in ready()]
        if trial.kind.workers:
            names = {event["pid"]: event["number"] for client in clients.values() for event in client.events("worker")}
            result["culprit"] = next(
                pid for pid, number in names.items() if number == trial.number % trial.kind.workers
            )
        else:
            result["culprit"] = pids[order.index(trial.place)]
        # The exporter and the recorder read new clients once a second.
        time.sleep(SETTLE_SECONDS + 2 * (trial.number in self.recorded))
        result["buffers"] = {pid: event["buffers"] for pid, (_, event) in zip(pids, ready(), strict=True)}
        began = time.perf_counter()
        result["foreign"] = [pid for pid, index in zip(pids, order, strict=True) if trial.is_foreign(index)]
        result["early"] = {pid: ranges(pid) for pid in pids}
        result["reading_seconds"] = round((time.perf_counter() - began) / len(pids), 6)
        self._log.read()
        go = self._go(trial)
        given = ""
        if trial.kind.name == "random":
            given = f"{random.randrange(0x7F0000000000, 0x7FFFFFFFF000) // 16 * 16:x}"
        elif trial.kind.name.startswith("framed"):
            start, size = result["buffers"][pids[order.index(trial.neighbour)]][-1]
            given = f"{start + size // 2:x}"
        (go.parent / "new").write_text(given)
        (go.parent / "new").rename(go)
        result["go"] = time.time()
        limit = time.monotonic() + XID_SECONDS
        lines: list[str] = []
        while not any("Xid" in line for line in lines) and time.monotonic() < limit:
            lines += self._log.read()
            time.sleep(0.002)
        result["xid_at"] = time.time()
        late: dict[int, list[list[Any]] | None] = {}
        for pid in pids:
            try:
                late[pid] = ranges(pid)
            except OSError:
                late[pid] = None
        result["late"] = late
        result["late_at"] = time.time()
        if any("Xid" in line for line in lines):
            self._wait_for_incident(result)
        result["lines"] = [*lines, *self._log.read()]
        result["intended"] = [event for client in clients.values() for event in client.events("fault")]
        result["died"] = [
            pid
            for pid, (index, event) in zip(pids, ready(), strict=True)
            if any(each.get("pid") == event.get("pid") for each in clients[index].events("error"))
        ]

    def _wait_for_incident(self, result: dict[str, Any]) -> None:
        """Wait until the exporter's incident has all evidence. Note when it had the address."""
        limit = time.time() + INCIDENT_SECONDS
        while time.time() < limit:
            incident = next((each for each in self._incidents() if each["detected_at"] >= result["go"] - 0.05), None)
            result["incident"] = incident
            if incident is not None and (incident["address"] or {}).get("matches"):
                result.setdefault("named_at", time.time())
                if all(each["in_flight"] is not None for each in incident["affected"]):
                    return
            time.sleep(0.01)


def cost_of_reading(pids: Sequence[int]) -> dict[str, Any]:
    """Return the CPU time that the exporter's reader takes for these processes."""
    from exporter.clock import SystemClock
    from exporter.collectors.proc import Proc

    proc = Proc(Path("/proc"), SystemClock())
    ticks = {pid: proc.start_ticks(pid) for pid in pids}
    began = time.thread_time()
    read = [proc.address_ranges(pid, start) for pid, start in ticks.items() if start is not None]
    seconds = time.thread_time() - began
    sizes = [len(Path(f"/proc/{pid}/maps").read_bytes()) for pid in pids]
    counts = [len(each.gpu) + len(each.host) for each in read if each is not None]
    return {"processes": len(pids), "seconds": seconds, "bytes": sizes, "ranges": counts}


def is_running(pid: int) -> bool:
    """Return whether a process has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def descendants(pid: int) -> list[int]:
    """Return all processes below one."""
    try:
        children = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return [*children, *(each for child in children for each in descendants(child))]


def crowd(runner: Runner, count: int) -> dict[str, Any]:
    """Return the cost of reading many idle clients of PyTorch."""
    kind = Kind(name="crowd", fault="", program="torch")
    trial = Trial(number=9999, kind=kind, count=count, torch=count, busy=False, how="read")
    clients = [start() for _, start in runner.prepare(trial)]
    limit = time.monotonic() + 60
    while time.monotonic() < limit and not all(each.events("ready") for each in clients):
        time.sleep(0.5)
    pids = [each.process.pid for each in clients if each.events("ready")]
    cost = cost_of_reading(pids)
    for client in clients:
        client.process.kill()
    return cost


def main(gpus: str, out: Path, seconds: float, only: str = "", recorded: str = "", crowded: str = "0") -> None:
    """Run trials for some seconds. Each is one line of `trials<GPUS>.jsonl.gz`.

    `only` selects kinds, `recorded` has the numbers of trials that are recorded, and `crowded` is the number of clients
    of which the cost of reading is measured at the end.
    """
    end = time.monotonic() + seconds
    name = gpus.replace(",", "-")
    work = Path(tempfile.mkdtemp(prefix="fault", dir="/tmp"))
    program = work / f"fault_client{name}"
    subprocess.run(["nvcc", "-O2", "-arch=native", "-o", str(program), str(HERE / "client.cu"), "-lcuda"], check=True)
    runner = Runner(gpus, work, program)
    runner.recorded = frozenset(map(int, recorded.split(","))) if recorded else frozenset()
    kinds = [kind for kind in KINDS if re.search(only, kind.name) and bool(kind.devices) == ("," in gpus)]
    trials = plan(1000 + int(gpus[0]), kinds)
    waiting = [(trial, runner.prepare(trial)) for trial in (next(trials), next(trials), next(trials))]
    print(gpus, runner.name, "probes are read:", runner.wait_for_probes(), flush=True)
    with gzip.open(out / f"trials{name}.jsonl.gz", "wt") as file:
        while time.monotonic() < end:
            trial, prepared = waiting.pop(0)
            following = next(trials)
            waiting.append((following, runner.prepare(following)))
            result = runner.run(trial, prepared)
            file.write(json.dumps(result) + "\n")
            file.flush()
            xid = next((line for line in result.get("lines", ()) if "Xid" in line), "no Xid")
            text = result.get("failed", xid.partition(";")[2])[:240]
            print(gpus, trial.number, trial.kind.name, trial.count, text, flush=True)
    if int(crowded):
        (out / f"crowd{name}.json").write_text(json.dumps(crowd(runner, int(crowded))) + "\n")
    runner.close()
    print(runner.log_of_exporter())
    if runner.recorded:
        shutil.make_archive(str(out / f"recordings{name}"), "gztar", runner.recordings)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), *sys.argv[4:])
