"""Who was on a GPU: the clients of MPS there, and the processes beside it."""

from collections.abc import Collection, Mapping

from exporter.core.work import is_of
from exporter.model.attribution import Splitting
from exporter.model.gpu import Gpu
from exporter.model.node import Node
from exporter.model.observation import ProcessUtilization
from exporter.model.server import Client, Server
from exporter.model.work import ProcessWork


def clients_on(node: Node, gpu: Gpu) -> frozenset[int]:
    """The clients that have a context there, as NVML lists them or the log told; on the only GPU, all of them."""
    listed = {process.pid for process in gpu.reading.mps_processes or () if process.used_bytes}
    servers = {pid for daemon in node.daemons.values() for pid in (*daemon.servers, *daemon.departed_servers)}
    told = {pid for daemon in node.daemons.values() for pid in _on(node, gpu, daemon.clients)}
    return frozenset((told | (listed & _connected(node))) - servers)


def left_since(node: Node, gpu: Gpu, last: Splitting, clients: frozenset[int]) -> frozenset[int]:
    """Who was a client there at some time since the last window, and is none any more."""
    gone = set(last.clients)
    if last.windows:
        for daemon in node.daemons.values():
            lately = {pid for pid, at in daemon.departed.items() if at > last.windows[-1].at}
            gone.update(lately.intersection(_on(node, gpu, daemon.parted)))
    return frozenset(gone - clients)


def is_its(node: Node, work: ProcessWork) -> bool:
    """Whether this is the work of the process that has its PID now, or had it until a moment ago."""
    process, death = node.processes.get(work.pid), node.deaths.get(work.pid)
    if process is None and death is not None:
        process = death.process
    return process is None or is_of(work.first_ns, process)


def gpus_of(node: Node, pid: int) -> int:
    """On how many GPUs a client is; at least one."""
    return max((1, *(len(daemon.clients[pid].gpus) for daemon in node.daemons.values() if pid in daemon.clients)))


def watched_at_the_doors(node: Node) -> tuple[dict[int, float], frozenset[int]]:
    """Whose work to watch: clients, with the thread percentages that their servers allow, and others on GPUs."""
    clients = {
        pid: _allowed(daemon.servers.get(client.server))
        for daemon in node.daemons.values()
        for pid, client in daemon.clients.items()
    }
    others = {process.pid for gpu in node.gpus.values() for process in gpu.reading.compute_processes or ()}
    return clients, frozenset(others - clients.keys())


def beside(gpu: Gpu) -> tuple[dict[int, float], float]:
    """Of the time in which anybody ran, the parts of the processes beside MPS, by PID; and the part of MPS.

    By NVML's samples, which know a process that has a context of its own (measured, R580). The parts are those of the
    last reading; where it has none, and nobody is beside MPS, all is of MPS.
    """
    strangers = gpu.bypassing
    if not strangers:
        return {}, 1.0
    by_pid = mean_by_pid(gpu.reading.process_utilization or ())
    whole = sum(by_pid.values())
    if not whole:
        return dict.fromkeys(strangers, 0.0), 0.0
    parts = {pid: by_pid.get(pid, 0.0) / whole for pid in strangers}
    return parts, max(0.0, 1 - sum(parts.values()))


def _on(node: Node, gpu: Gpu, clients: Mapping[int, Client]) -> Collection[int]:
    """Those of them that are there, as far as the log told."""
    uuid = gpu.reading.gpu
    return clients.keys() if len(node.gpus) == 1 else [pid for pid, client in clients.items() if uuid in client.gpus]


def _connected(node: Node) -> set[int]:
    return {pid for daemon in node.daemons.values() for pid in daemon.clients}


def mean_by_pid(samples: tuple[ProcessUtilization, ...]) -> dict[int, float]:
    """How much of the time each process ran, in percent: NVML may have several samples of one."""
    percents: dict[int, list[int]] = {}
    for sample in samples:
        percents.setdefault(sample.pid, []).append(sample.sm_percent)
    return {pid: sum(each) / len(each) for pid, each in percents.items()}


def _allowed(server: Server | None) -> float:
    percentage = None if server is None else server.active_thread_percentage
    return 100.0 if percentage is None else percentage
