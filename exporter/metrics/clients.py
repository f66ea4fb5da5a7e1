"""Families about clients. Who a client is stands on its info alone; the others join it on `client`."""

from exporter.metrics.family import Samples, gauge
from exporter.view import View, used_bytes


def _info(view: View) -> Samples:
    for daemon, client, client_id in view.clients():
        process = view.node.processes.get(client.pid)
        uid = "" if process is None or process.uid is None else str(process.uid)
        user = "" if process is None else process.user or ""
        command = "" if process is None else process.command or ""
        yield (daemon.name, str(client.server), client_id, str(client.pid), uid, user, command), 1


def _memory(view: View) -> Samples:
    used = [(gpu.reading.gpu, used_bytes(gpu.reading)) for gpu in view.node.gpus.values()]
    for daemon, client, client_id in view.clients():
        for gpu, by_pid in used:
            if client.pid in by_pid:
                yield (daemon.name, client_id, gpu), by_pid[client.pid]


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
