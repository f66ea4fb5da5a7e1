"""What the experiments share: programs, a daemon with its exporter, and the kernels in the exporter's answers."""

import json
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from exporter.errors import ServiceError
from exporter.status_client import query_service
from lab.gpu.child import Child
from lab.gpu.mps import ControlDaemon
from lab.gpu.program import SOURCE, Exporter
from tests.eventually import eventually

HERE = Path(__file__).parent
ANSWER_SECONDS, FIRST_SECONDS = 5.0, 20.0
PROBES = "cuda_mps_exporter_source_up"
ARCHITECTURE = "native"

Json = Mapping[str, Any]


def compiled(source: str, program: Path, *options: str) -> Path:
    """Compile a file of this folder; RuntimeError with the compiler's words if it cannot be."""
    command = ["nvcc", f"-arch={ARCHITECTURE}", "-O2", "-o", str(program), str(HERE / source), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr[-800:]}")
    return program


class Service:
    """A daemon, and an exporter with probes. `first` is a process that is ready before the exporter starts."""

    def __init__(
        self, directory: Path, *, first: Callable[[ControlDaemon], Child] | None = None, source: Path = SOURCE
    ) -> None:
        self.daemon = ControlDaemon(directory)
        self.daemon.start()
        self._running: list[Child | Exporter] = []
        try:
            self.first = None if first is None else first(self.daemon)
            if self.first is not None:
                self._running.append(self.first)
                wait_for([self.first], "ready", time.monotonic() + FIRST_SECONDS)
            self.exporter = Exporter(self.daemon, "--attribution=bpf", "--client-min-age=0s", source=source)
            self._running.append(self.exporter)
            self.exporter.wait()
        except BaseException:
            self.end()
            raise

    def wait_for_probes(self, within: float = 20) -> bool:
        """Wait until the probes are read, and return whether they are."""

        def check() -> None:
            found = self.exporter.scrape().select(PROBES, source="libcuda_probes")
            assert [each.value for each in found] == [1.0]

        try:
            eventually(check, within=within, every=0.2)
        except AssertionError:
            return False
        return True

    def ask(self, command: str, **arguments: Any) -> Any:
        """Return the answer to `status` or `incidents`, as root gets it; None if there is none."""
        try:
            answer = query_service(self.daemon.directory / "run", command, ANSWER_SECONDS, **arguments)
        except ServiceError:
            return None
        return None if answer is None else answer.get(command)

    def incidents(self, limit: int = 20) -> list[Json]:
        """Return the newest incidents."""
        return self.ask("incidents", id=None, daemon=None, open=False, limit=limit) or []

    def end(self) -> None:
        """End everything."""
        for each in reversed(self._running):
            each.end()
        self.daemon.end()


def events(child: Child) -> list[Json]:
    """Return what a client printed as JSON."""
    found = []
    for line in child.text().splitlines(keepends=True):
        if line.startswith("{") and line.endswith("}\n"):
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
    return found


def first_event(child: Child, event: str) -> Json | None:
    """Return its first event of a kind."""
    return next((each for each in events(child) if each.get("event") == event), None)


def wait_for(children: Iterable[Child], event: str, deadline: float) -> None:
    """Wait until each has printed it or has ended, or until a time of the monotonic clock."""
    waiting = [*children]
    while waiting and time.monotonic() < deadline:
        waiting = [each for each in waiting if each.exit_code is None and first_event(each, event) is None]
        time.sleep(0.02)


def maps_of(pid: int) -> int:
    """Return the bytes of the BPF maps that a process has open."""
    total = 0
    for file in Path(f"/proc/{pid}/fdinfo").glob("*"):
        try:
            fields = dict(line.split(":", 1) for line in file.read_text().splitlines() if ":" in line)
        except OSError:
            continue
        total += int(fields["memlock"]) if "map_type" in fields else 0
    return total


def parts_about(value: Any, pid: int) -> Iterable[Json]:
    """Yield all objects of an answer that are about a process."""
    if isinstance(value, Mapping):
        if value.get("pid") == pid:
            yield value
        for each in value.values():
            yield from parts_about(each, pid)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from parts_about(each, pid)


def shown_kernels(answer: Any, pid: int) -> list[str]:
    """Return the kernels that an answer shows for a process, in its order: those in flight first.

    The text of each is its short name, then the one that the program has; "?" if it is unknown. A graph counts as its
    nodes.
    """
    found: dict[str, None] = {}
    for part in parts_about(answer, pid):
        found.update(dict.fromkeys(_texts(part.get("kernels"))))
    return [*found]


def _texts(value: Any) -> Iterable[str]:
    """Yield the names in a list of kernels, as `status` and incidents have them."""
    if isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)
    elif isinstance(value, Mapping) and "raw" in value:
        yield f"{value.get('short', '')} {value['raw']}"
    elif isinstance(value, Mapping):
        inner = next((value[key] for key in ("in_flight", "names", "nodes", "name") if value.get(key)), None)
        is_list = "in_flight" in value
        yield from ["?"] if inner is None and not is_list else _texts(inner)
