"""What the demo's daemons are asked, and what they say."""

from collections.abc import Iterator

from exporter.demo.daemon import SimulatedDaemon
from exporter.model.observation import ControlReply, Observation
from exporter.model.witnesses import ControlSocket, SessionHolder

ASKED_EVERY = 30
IN_DOUBT_EVERY = 2
"""Seconds between two questions; one that is not well is asked sooner."""

NO_SESSION = "Cannot send command to MPS control daemon process\n"
PATIENCE_SECONDS = 1.0


def questions(daemon: SimulatedDaemon, at: float) -> Iterator[Observation]:
    """It is asked, when its time has come."""
    if daemon.hangs or daemon.holder is not None:
        if int(at) % IN_DOUBT_EVERY == 0:
            yield from _in_vain(daemon, at)
    elif int(at) % ASKED_EVERY == 0:
        yield from ask(daemon, at)


def ask(daemon: SimulatedDaemon, at: float) -> Iterator[Observation]:
    """It is asked for its server, that server's state and clients, and for all limits; its logs are measured."""
    yield from daemon.logs(at)
    server, share = daemon.server, daemon.limits.active_thread_percentage or 100.0
    yield daemon.says(at, "Cmd:get_server_list")
    yield daemon.answers(at, "get_server_list", "" if server is None else f"{server}\n")
    yield daemon.answers(at, "get_default_active_thread_percentage", f"{share:.1f}\n")
    for device, limit in daemon.limits.pinned_memory.items():
        yield daemon.answers(at, f"get_default_device_pinned_mem_limit {device}", f"{limit >> 30}G\n")
    if server is not None:
        yield daemon.answers(at, f"get_server_status {server}", "ACTIVE\n" if daemon.fault is None else "FAULT\n")
        yield daemon.answers(at, f"get_client_list {server}", "".join(f"{pid}\n" for pid in daemon.clients))
        yield ask_for_threads(daemon, at)


def ask_for_threads(daemon: SimulatedDaemon, at: float) -> ControlReply:
    """It is asked for the share of a GPU's threads that its server's clients have."""
    return daemon.answers(at, f"get_active_thread_percentage {daemon.server}", f"{daemon.active_threads:.1f}\n")


def _in_vain(daemon: SimulatedDaemon, at: float) -> Iterator[Observation]:
    if daemon.holder is None:
        command = "get_server_list"
        yield ControlReply(at=at, daemon=daemon.name, command=command, exit_code=None, seconds=PATIENCE_SECONDS)
        yield ControlSocket(at=at, daemon=daemon.name, listening=True, answers=False)
        return
    yield daemon.refuses(at, "get_server_list", NO_SESSION)
    holder = daemon.holder
    yield SessionHolder(
        at=at,
        daemon=daemon.name,
        pid=holder.pid,
        start_ticks=holder.start_ticks,
        started=at,
        uid=holder.owner.uid,
        user=holder.owner.user,
    )
