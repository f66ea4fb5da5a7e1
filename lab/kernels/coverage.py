"""Which kernels of which clients are known by name.

    OUT=DIR python3 -m lab.kernels.coverage [--seconds S] [--alone] [--only TEXT] [--deadline S]

As root, with MPS and nvcc. DIR gets `coverage.json` and `coverage.txt`. Clients run in waves, at once within each; with
--alone each is a wave. For each client: the kernels that it knows itself, those that `status` shows, and, by probes of
this process, the part of its launches and graph nodes that have a name. `early` begins before the exporter.
"""

import argparse
import json
import os
import re
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from exporter.clock import SystemClock
from exporter.collectors.proc import Proc
from exporter.libcuda_probes.handles import Handles
from exporter.libcuda_probes.loader import Kernel
from exporter.libcuda_probes.probes import LibcudaProbes
from exporter.libcuda_probes.recorder import KernelRecorder
from exporter.model.kernels import ClientKernels, KernelName, LaunchedKernel
from exporter.model.launches import ProcessWork, sums
from lab.attribution.cost import SMS, boot_ns, library
from lab.gpu.child import Child
from lab.gpu.mps import ControlDaemon
from lab.gpu.program import SOURCE

from .service import Service, compiled, events, first_event, shown_kernels, wait_for

READY_SECONDS, UPDATE_SECONDS = 60.0, 0.5
OPTIONS = {
    "cuda": ("-lcuda",),
    "shared": ("-lcuda", "-cudart=shared", "-Xlinker", "-rpath=/usr/local/cuda/lib64"),
    "while": ("-lcuda", "-lcudadevrt", "-DWHILE", "-rdc=true"),
    "cubin": ("-cubin",),
}
"""How each program of forms.cu is compiled."""

NATIVE = ("streams", "dependent", "capture", "nodes", "driver", "driver-nodes", "library")
EAGER = ("torch_eager", "torch_conv", "cupy_raw", "cupy_elementwise", "numba", "cuda_python")
COMPILED = ("torch_compiled", "torch_graph", "triton_softmax", "jax_training", "torch_lstm")
WAVES: Sequence[Sequence[str]] = (
    (*(f"cuda:{form}" for form in NATIVE), "shared:streams", "while:while"),
    tuple(f"python:{kind}" for kind in EAGER),
    tuple(f"python:{kind}" for kind in COMPILED),
    ("python:torch_small", "cuda:streams"),
)
"""In the last one, a client launches so much that the probes on launches pause."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """What was counted of a process.

    `launches` are those of kernels, and `named` those with a name. `graphs` are launches of graphs, and `known_graphs`
    those of graphs with known kernels. `nodes` are their launched kernels, each kernel of a graph once, and
    `named_nodes` those with a name. `lost` is how many names were lost.
    """

    launches: int
    named: int
    graphs: int
    known_graphs: int
    nodes: int
    named_nodes: int
    names: tuple[str, ...]
    lost: int


def coverage(client: ClientKernels, work: ProcessWork | None) -> Coverage:
    """Return the coverage of a process. `work` also counts launches of kernels that have no room in `client`."""
    kernels = [each for each in client.last if not each.is_graph]
    graphs = [each for each in client.last if each.is_graph]
    nodes = [(node.raw, each.launches) for each in graphs for node in each.nodes]
    names = {each.name.raw for each in kernels if each.name} | {raw for raw, _ in nodes if raw}
    return Coverage(
        launches=sum(each.launches for each in kernels) if work is None else work.kernels,
        named=sum(each.launches for each in kernels if each.name),
        graphs=0 if work is None else work.graphs,
        known_graphs=sum(each.launches for each in graphs),
        nodes=sum(launches for _, launches in nodes),
        named_nodes=sum(launches for raw, launches in nodes if raw),
        names=tuple(sorted(names)),
        lost=client.names_lost,
    )


def coverages(read: Callable[[], Iterable[ClientKernels]], works: Mapping[int, ProcessWork]) -> dict[int, Coverage]:
    """Return the coverage of each process."""
    merged: dict[int, ClientKernels] = {}
    for each in read():
        known = merged.get(each.pid)
        merged[each.pid] = each if known is None else replace(known, last=(*known.last, *each.last))
    return {pid: coverage(each, works.get(pid)) for pid, each in merged.items()}


def core_of(name: str) -> str:
    """Return the part of a kernel's name that its mangled form has, too: without arguments and namespaces."""
    known = name.removeprefix("void ").replace("(anonymous namespace)", "")
    return re.split(r"[<(]", known, maxsplit=1)[0].rpartition("::")[2].strip() or name


def missing(expected: Iterable[str], found: Sequence[str]) -> list[str]:
    """Return the expected kernels that no found name is of."""
    return [name for name in expected if not any(core_of(name) in each for each in found)]


class Direct(threading.Thread):
    """The probes of this process, beside those of the exporter: they never pause, and count all launches."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        path, offsets = library()
        self._handles = Handles(Proc(Path("/proc"), SystemClock()).start_ticks, lambda pid: pid)
        self._recorder = KernelRecorder(self._handles, lambda _names: {})
        self._lock, self._over = threading.Lock(), threading.Event()
        self._probes = LibcudaProbes(Kernel(), boot_ns, SMS)
        self._probes.attach(path, offsets)
        self._probes.begin()
        self.start()

    def run(self) -> None:
        """Read names until it is closed: there is room for those of some time."""
        while not self._over.wait(UPDATE_SECONDS):
            with self._lock:
                self._update()

    def read(self) -> dict[int, Coverage]:
        """Return the coverage of each process."""
        with self._lock:
            clients = [*self._clients(self._update())]
            # Read last, so that there are no more launches with a name than launches.
            return coverages(lambda: clients, sums(self._probes.read()))

    def close(self) -> None:
        self._over.set()
        self.join()
        self._probes.close()

    def _update(self) -> Mapping[int, ProcessWork]:
        works = sums(self._probes.read())
        self._recorder.update(self._probes, works, UPDATE_SECONDS)
        return works

    def _clients(self, works: Mapping[int, ProcessWork]) -> Iterator[ClientKernels]:
        for pid, entries in self._probes.kernels():
            last = []
            for entry in entries:
                # A kernel has a grid, and a graph has none. Here, a node without a name is an empty one.
                raws = self._handles.names(pid, entry.handle, entry.last_ns)
                names = tuple(KernelName(raw=raw or "", short="") for raw in raws)
                is_graph = entry.grid[0] == 0
                last.append(
                    LaunchedKernel(
                        name=names[0] if names[0].raw and not is_graph else None,
                        nodes=names if is_graph and raws != (None,) else (),
                        is_graph=is_graph and raws != (None,),
                        launches=entry.launches,
                    )
                )
            yield ClientKernels(
                pid=pid, first_ns=0, last=tuple(last), names_lost=works[pid].unnamed if pid in works else 0
            )


class Programs:
    """The commands of the clients, by their names. A program that cannot be compiled fails its clients alone."""

    def __init__(self, directory: Path) -> None:
        with ThreadPoolExecutor() as pool:
            self._built = {
                name: pool.submit(compiled, "forms.cu", directory / f"forms-{name}", *options)
                for name, options in OPTIONS.items()
            }

    def command(self, client: str) -> list[str]:
        """Return the command of `python:KIND`, or of `PROGRAM:FORM`."""
        program, _, kind = client.partition(":")
        if program == "python":
            pause = ["--pause=0"] if kind == "torch_small" else []
            return [sys.executable, "-m", "lab.kernels.frameworks", kind, *pause]
        return [str(self._built[program].result()), kind, str(self._built["cubin"].result())]


class Run:
    """Runs waves of clients, and reads what is known of each."""

    def __init__(self, directory: Path, *, seconds: float, deadline: float) -> None:
        self.results: list[dict[str, Any]] = []
        self.problems: list[str] = []
        self._directory, self._seconds, self._deadline = directory, seconds, deadline
        self._programs = Programs(directory)
        self._direct: Direct | None = None
        self.service = Service(directory / "d", first=self._early)
        try:
            if not self.service.wait_for_probes():
                self.problems.append(f"no probes\n{self.service.exporter.evidence()}")
            self._direct = Direct()
        except Exception:
            self.problems.append(traceback.format_exc())

    def _early(self, daemon: ControlDaemon) -> Child:
        return self._start("cuda:streams", "early", daemon)

    def _start(self, client: str, name: str, daemon: ControlDaemon) -> Child:
        environment = {
            **daemon.environment,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH")])),
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
            "TORCHINDUCTOR_CACHE_DIR": str(self._directory / "inductor"),
            "TRITON_CACHE_DIR": str(self._directory / "triton"),
        }
        output = self._directory / f"{len(self.results)}-{name}.out"
        return Child(self._programs.command(client), output=output, environment=environment, directory=SOURCE)

    def wave(self, clients: Sequence[str]) -> None:
        """Run some clients at once."""
        running: list[tuple[str, Child]] = []
        for number, client in enumerate(clients):
            try:
                name = f"{number}-{client.replace(':', '-')}"
                running.append((client, self._start(client, name, self.service.daemon)))
            except Exception as problem:
                self.results.append({"client": client, "failed": repr(problem)[:1000]})
        limit = min(time.monotonic() + READY_SECONDS, self._deadline)
        wait_for([child for _, child in running], "ready", limit)
        time.sleep(max(0.0, min(self._seconds, self._deadline - time.monotonic())))
        self._read(running)

    def _read(self, running: Sequence[tuple[str, Child]]) -> None:
        """Read what is known of these clients, and end them: only then they print what they launched."""
        try:
            status, scrape = self.service.ask("status"), self.service.exporter.scrape()
        except Exception:
            self.problems.append(traceback.format_exc())
            status, scrape = None, None
        direct: dict[int, Coverage] = {}
        if self._direct is not None:
            try:
                direct = self._direct.read()
            except Exception:
                self.problems.append(traceback.format_exc())
        for _, child in running:
            child.terminate()
        for client, child in running:
            child.end(within=15)
            kernels, done = first_event(child, "kernels"), first_event(child, "done")
            found = direct.get(child.pid)
            expected = [str(each) for each in (kernels or {}).get("names", ())]
            shown = shown_kernels(status, child.pid)
            watched = [] if scrape is None else scrape.select("cuda_mps_client_info", pid=str(child.pid))
            ratios = [] if scrape is None else [
                each.value for info in watched
                for each in scrape.select("cuda_mps_client_watched_ratio", client=info.labels["client"])
            ]  # fmt: skip
            failed = first_event(child, "failed") or (
                {} if first_event(child, "ready") else {"why": child.evidence()[-600:]}
            )
            self.results.append(
                {
                    "client": client,
                    "pid": child.pid,
                    "failed": failed.get("why"),
                    "steps": (done or {}).get("steps"),
                    "expected": expected,
                    "shown": shown,
                    "shown_missing": missing(expected, shown),
                    "watched_ratio": ratios[0] if ratios else None,
                    "direct": None if found is None else asdict(found),
                    "direct_missing": None if found is None else missing(expected, found.names),
                    "other": [each for each in events(child) if each.get("event") == "unprofiled"],
                }
            )
            print(row(self.results[-1]), flush=True)

    def end(self) -> None:
        """Read the client that began first, and end everything."""
        if self.service.first is not None:
            self._read([("early", self.service.first)])
        if self._direct is not None:
            self._direct.close()
        self.service.end()


def row(result: Mapping[str, Any]) -> str:
    """Return a client's result in a line."""
    if result["failed"]:
        return f"{result['client']:24} failed: {result['failed'].strip().splitlines()[-1][:150]}"
    found = result["direct"]
    known = f"{len(result['expected'])} known ones without {len(result['shown_missing'])}"
    parts = [f"{result['client']:24} status shows {len(result['shown']):2} kernels, of {known}"]
    if found is not None:
        parts += [
            f"launches with a name {_ratio(found['named'], found['launches'])}",
            f"nodes {_ratio(found['named_nodes'], found['nodes'])}",
            f"graphs known {_ratio(found['known_graphs'], found['graphs'])}",
            f"{len(found['names'])} kernels, missing {len(result['direct_missing'])}",
        ]
    if result["watched_ratio"] is not None:
        parts.append(f"watched {result['watched_ratio']:.2f}")
    return "; ".join(parts)


def _ratio(part: int, whole: int) -> str:
    return f"{part} of {whole}" + (f" ({part / whole:.3f})" if whole else "")


def waves(only: str, *, alone: bool) -> Iterator[Sequence[str]]:
    """Yield the waves."""
    for wave in WAVES:
        chosen = [each for each in wave if re.search(only, each)]
        yield from ([each] for each in chosen) if alone else [chosen] if chosen else []


def write(out: Path, run: Run, **more: Any) -> None:
    """Write what there is so far."""
    (out / "coverage.txt").write_text("\n".join([*map(row, run.results), *run.problems]) + "\n")
    found = {"results": run.results, "problems": run.problems, **more}
    (out / "coverage.json").write_text(json.dumps(found, indent=1) + "\n")


def main() -> int:
    """Run everything; 0 if there was no problem. A client that fails is in the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each wave, after all clients are ready")
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--only", default="", help="a regular expression of clients")
    parser.add_argument("--deadline", type=float, default=240.0, help="seconds; begin no wave afterwards")
    options = parser.parse_args()
    out = Path(os.environ["OUT"])
    out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + options.deadline
    with tempfile.TemporaryDirectory(prefix="mps", dir="/tmp", ignore_cleanup_errors=True) as directory:
        Path(directory).chmod(0o755)
        run = Run(Path(directory), seconds=options.seconds, deadline=deadline)
        try:
            for wave in waves(options.only, alone=options.alone):
                if time.monotonic() > deadline - options.seconds:
                    run.problems.append(f"no time for {', '.join(wave)}")
                    continue
                print(f"{deadline - time.monotonic():.0f} s left: {', '.join(wave)}", flush=True)
                run.wave(wave)
                write(out, run)
        except Exception:
            run.problems.append(traceback.format_exc())
        finally:
            status = run.service.ask("status")
            run.end()
            write(out, run, status=status)
            print((out / "coverage.txt").read_text(), flush=True)
    return 1 if run.problems else 0


if __name__ == "__main__":
    sys.exit(main())
