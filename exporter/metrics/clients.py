"""Families about clients. Who a client is stands on its info alone; the others join it on `client`."""

from exporter.metrics.family import Samples, gauge
from exporter.model.observation import GpuProcess, GpuReading
from exporter.view import View


def _info(view: View) -> Samples:
    for daemon, client, client_id in view.clients():
        process = view.node.processes.get(client.pid)
        uid = "" if process is None or process.uid is None else str(process.uid)
        user = "" if process is None else process.user or ""
        command = "" if process is None else process.command or ""
        yield (daemon.name, str(client.server), client_id, str(client.pid), uid, user, command), 1


def _memory(view: View) -> Samples:
    used = [(gpu.reading.gpu, _used_bytes(gpu.reading)) for gpu in view.node.gpus.values()]
    for daemon, client, client_id in view.clients():
        for gpu, by_pid in used:
            if client.pid in by_pid:
                yield (daemon.name, client_id, gpu), by_pid[client.pid]


def _used_bytes(reading: GpuReading) -> dict[int, int]:
    """Memory of each process on a GPU; NVML's two lists agree on the clients that are in both (measured)."""
    processes: tuple[GpuProcess, ...] = (*(reading.compute_processes or ()), *(reading.mps_processes or ()))
    return {each.pid: each.used_bytes for each in processes if each.used_bytes is not None}


FAMILIES = (
    gauge(
        "cuda_mps_client_info",
        ("daemon", "server", "client", "pid", "uid", "user", "command"),
        "Who a connected client is, once it is of the age that --client-min-age sets; join on client.",
        _info,
    ),
    gauge(
        "cuda_mps_client_memory_used_bytes",
        ("daemon", "client", "gpu"),
        "GPU memory that the client uses, its context included, as NVML last read it.",
        _memory,
    ),
)
