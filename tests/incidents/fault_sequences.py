"""Random sequences with many faults: complete and cut log blocks, states, Xids, exits, refusals, renames."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from hypothesis import strategies as st

from exporter.model.daemon import NamedBy
from exporter.model.launches import WorkReading
from exporter.model.observation import DaemonFound, LogLine, Observation
from tests.builders import (
    AT,
    CLIENT,
    DAEMON,
    GPU,
    OTHER_GPU,
    SENSORS,
    SERVER,
    active,
    at_work,
    clients,
    daemon_process,
    exited,
    gpu_reading,
    look,
    no_daemon,
    process,
    reduced,
    server_log,
    servers,
    stamped,
    status,
)
from tests.state.xid_reports import event, kernel
from tests.works import boot_ns, reading, work

SERVERS = (SERVER, SERVER + 1)
CLIENTS = tuple(range(CLIENT, CLIENT + 5))
NEW_CLIENT = 900
NUMBERS = (13, 31, 43, 79, 94)

START = reduced(
    *at_work(),
    daemon_process(),
    gpu_reading(CLIENTS, **SENSORS),
    gpu_reading((), gpu=OTHER_GPU, index=1, pci_bus_id="00000000:00:07.0"),
    *(line for pid in CLIENTS for line in server_log(active(pid))),
    *(process(pid) for pid in CLIENTS),
).node
"""A server with five clients on a node with two GPUs."""

some = st.lists(st.sampled_from(CLIENTS), unique=True, min_size=1)
server = st.sampled_from((SERVER, SERVER, SERVER, SERVER + 1))


def block(
    pids: Sequence[int], devices: Sequence[int], named: int | None, cut: int, server: int
) -> tuple[Observation, ...]:
    """Return a fault log block without its last `cut` lines."""
    lines = (
        *(() if named is None else (f"Client {{PID: {named}, Context: 1}} encountered a fatal GPU error.",)),
        "Server is handling a fatal GPU error.",
        *(f"Client {{PID: {pid}, Context ID: 1}} on device 0 to be torn down" for pid in pids),
        "The following devices will be reset:",
        *map(str, devices),
        "The following client process have a sticky error set:",
        *map(str, pids),
    )
    return server_log(*lines[: len(lines) - cut], server=server)


def disconnect(pids: Sequence[int], how: str, server: int) -> tuple[Observation, ...]:
    return server_log(
        *(
            line
            for pid in pids
            for line in (f"Client {{PID: {pid}, Context ID: 1}} exiting.{how}", f"Client process {pid} disconnected")
        ),
        server=server,
    )


def refuse(pid: int, server: int) -> tuple[Observation, ...]:
    """A new client is refused."""
    return server_log(
        f"Server teardown in progress. Refusing to accept new client {{PID: {pid}, Context ID: 0}}",
        f"Failed to accept client {{PID: {pid}, Context ID: 0}} with status 807",
        server=server,
    )


def reset(devices: Sequence[int], server: int) -> tuple[Observation, ...]:
    return server_log(*(f"Destroy server context on device {each} (NVIDIA H200)" for each in devices), server=server)


def renamed(name: str) -> tuple[Observation, ...]:
    """The configuration gives the daemon a name."""
    return (
        DaemonFound(
            at=AT, daemon=name, pipe_directory=DAEMON, log_directory="/log", expected=True, by=NamedBy.CONFIGURATION
        ),
    )


def read_probes(pids: Sequence[int], launched: float, in_flight: bool) -> tuple[Observation, ...]:
    """The probes of all clients are read. `launched` is the time of the last launch of these, relative to AT."""
    since = AT + launched if in_flight else None
    return (reading(AT, *(work(pid, launched=AT + launched, since=since) for pid in pids), watched=CLIENTS),)


devices = st.sampled_from(((0,), (1,), (0, 1)))
steps = st.one_of(
    st.builds(block, some, devices, st.none() | st.sampled_from(CLIENTS), st.sampled_from((0, 0, 0, 1, 3, 6)), server),
    st.builds(disconnect, some, st.sampled_from(("", "", " Worker is in reset.")), server),
    st.builds(reset, devices, server),
    st.builds(lambda pid, server: server_log(active(pid), server=server), st.sampled_from(CLIENTS), server),
    st.builds(refuse, st.sampled_from((NEW_CLIENT, *CLIENTS)), server),
    st.builds(
        lambda number, pid: (kernel(number, who=f"pid={pid}, name=train.py, "),),
        st.sampled_from(NUMBERS),
        st.sampled_from(CLIENTS),
    ),
    st.builds(
        lambda number, gpu: (event(number, gpu=gpu),), st.sampled_from(NUMBERS), st.sampled_from((GPU, OTHER_GPU))
    ),
    st.builds(
        lambda state, server: (status(state, server=server),),
        st.sampled_from(("FAULT", "FAULT", "ACTIVE", f"Server {SERVER} not found")),
        server,
    ),
    st.builds(lambda pids: (clients(*pids),), st.lists(st.sampled_from(CLIENTS), unique=True)),
    st.builds(lambda pids: (servers(*pids),), st.lists(st.sampled_from(SERVERS), unique=True)),
    st.builds(lambda pid: (exited(pid),), st.sampled_from((*CLIENTS, *SERVERS))),
    st.builds(
        lambda pid, ticks: (process(pid, ticks=ticks),), st.sampled_from((*CLIENTS, *SERVERS)), st.integers(1, 2)
    ),
    st.builds(read_probes, st.lists(st.sampled_from(CLIENTS), unique=True), st.floats(-3, 0.2), st.booleans()),
    st.builds(renamed, st.sampled_from(("main", "spare"))),
    st.sampled_from(((no_daemon(),), (daemon_process(None),), (daemon_process(442),), (look("log"),), (look("nvml"),))),
)
gaps = st.sampled_from((0.0, 0.0, 0.12, 0.2, 0.6, 1.1, 2.5, 70.0))


def _timed(steps: Iterable[tuple[float, tuple[Observation, ...]]]) -> list[Observation]:
    """Return the observations of steps. Lines of a step share a timestamp, and a rename applies from then on."""
    at, name, observations = AT, DAEMON, []
    for number, (gap, step) in enumerate(steps):
        at += gap
        for each in step:
            name = each.daemon if isinstance(each, DaemonFound) else name
            named = replace(each, daemon=name) if getattr(each, "daemon", None) == DAEMON else each
            observations.append(_at(named, at, at + number / 1000))
    return observations


def _at(observation: Observation, at: float, stamp: float) -> Observation:
    if isinstance(observation, WorkReading):
        later = boot_ns(at) - boot_ns(AT)
        works = tuple(
            replace(each, launched_ns=each.launched_ns + later, open_since_ns=each.open_since_ns + later)
            for each in observation.processes
        )
        return replace(observation, at=at, boot_ns=boot_ns(at), seconds=100.0, processes=works)
    return _stamped(observation, at, stamp) if isinstance(observation, LogLine) else replace(observation, at=at)


def _stamped(line: LogLine, seen_at: float, at: float) -> LogLine:
    stamp = stamped("", at=at)[: len("[2026-11-20 15:08:45.147")]
    return replace(line, at=seen_at, line=stamp + line.line[len(stamp) :])


def _sequences(gaps: st.SearchStrategy[float]) -> st.SearchStrategy[list[Observation]]:
    return st.lists(st.tuples(gaps, steps), max_size=30).map(_timed)


fault_sequences = _sequences(gaps)
fault_sequences_with_clock_steps = _sequences(gaps | st.sampled_from((-0.2, -30.0)))
