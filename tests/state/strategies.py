"""Random observations of a busy node that reuses PIDs."""

from collections.abc import Iterable
from dataclasses import replace

from hypothesis import strategies as st

from exporter.model.observation import DaemonFound, GpuReading, LogFile, Observation
from tests.builders import (
    AT,
    CLIENT,
    CONTROL,
    DAEMON,
    FAULT_BLOCK,
    GPU,
    HANGS,
    OTHER_GPU,
    SERVER,
    UNIT,
    active,
    clients,
    connecting,
    control_log,
    daemon_process,
    exited,
    failure,
    gpu_reading,
    holder,
    look,
    no_daemon,
    process,
    refusal,
    reply,
    server_log,
    servers,
    silence,
    socket,
    standing,
    status,
    unit_state,
)

SERVERS = (SERVER, SERVER + 1)
CLIENTS = (CLIENT, CLIENT + 1, CLIENT + 2)
ALL_PIDS = (*CLIENTS, *SERVERS)
DAEMONS = (DAEMON, "/run/other")

CONTROL_SAYS = (
    "Starting control daemon using socket /tmp/nvidia-mps/control",
    "CUDA MPS Control binary version: 13000",
    "Cmd:ps",
    "Cmd:quit",
    "Cmd:set_default_device_pinned_mem_limit 0 3G",
    f"Cmd:set_active_thread_percentage {SERVER} 40",
    "set_default_device_pinned_mem_limit 0 3G.",
    "UI closed",
    "Exit with status 0",
    "513",
    "an unknown line",
    *(f"Starting new server {server} for user {uid}" for server in SERVERS for uid in (0, 7)),
    *(f"NEW SERVER {server}: Ready" for server in SERVERS),
    *(f"Server {server} exited with status 0" for server in SERVERS),
    *(f"Try shutting down server {server}, backoff is enabled" for server in SERVERS),
    *(f"Server {server} has 2 active worker threads. Server will not shutdown." for server in SERVERS),
    *(f"NEW CLIENT {pid} from user 0: Server is not ready, push client to pending list" for pid in ALL_PIDS),
    *(f"NEW CLIENT {pid} from user 0: Server already exists" for pid in CLIENTS),
)
SERVER_SAYS = (
    "Active Threads Percentage set to 40.0",
    "Device pinned memory limit for device 0 set to 0xc0000000 bytes",
    "Creating server context on device 0 (NVIDIA H200)",
    *(f"Device NVIDIA H200 (uuid {gpu}) is associated" for gpu in (GPU, OTHER_GPU)),
    *(f"Client {{PID: {pid}, Context ID: {context}}} exiting." for pid in ALL_PIDS for context in (1, 2)),
    *(f"Client {{PID: {pid}, Context ID: 1}} exiting. Worker is in reset." for pid in CLIENTS),
    *(f"MPS server requesting client {{PID: {pid}, Context ID: 1}} to exit" for pid in CLIENTS),
    *(f"Client {{PID: {pid}, Context: 1}} encountered a fatal GPU error." for pid in CLIENTS),
    *(f"Client {{PID: {pid}, Context ID: 1}} on device 0 to be torn down" for pid in ALL_PIDS),
    *(f"Client {{{pid}, {context}}} exit" for pid in (CLIENT, CLIENT + 1) for context in (1, 2)),
    "Server has started",
    "Failed to accept new client. Maximum number of clients (48) reached.",
    *FAULT_BLOCK,
    "1",
    "Destroy server context on device 0 (NVIDIA H200)",
    "Destroy server context on device 1 (NVIDIA H200)",
    "an unknown line",
    *(connecting(pid, context) for pid in CLIENTS for context in (0, 1)),
    *(active(pid) for pid in ALL_PIDS),
    *(f"Client process {pid} disconnected" for pid in ALL_PIDS),
    *(f"Server teardown in progress. Refusing to accept new client {{PID: {pid}, Context ID: 0}}" for pid in CLIENTS),
    *(f"Failed to accept client {{PID: {pid}, Context ID: 0}} with status 807" for pid in CLIENTS),
)

daemons = st.sampled_from(DAEMONS)
server = st.sampled_from(SERVERS)
any_pid = st.sampled_from(ALL_PIDS)
ticks = st.sampled_from((1, 2))
some_clients = st.lists(st.sampled_from(ALL_PIDS), unique=True)

replies = st.one_of(
    st.builds(lambda daemon, pids: servers(*pids, daemon=daemon), daemons, st.lists(server, unique=True)),
    st.builds(lambda daemon, server, pids: clients(*pids, server=server, daemon=daemon), daemons, server, some_clients),
    st.builds(
        lambda daemon, server, word: status(word, server=server, daemon=daemon),
        daemons,
        server,
        st.sampled_from(("ACTIVE", "INITIALIZING", "FAULT", "BOGUS", f"Server {SERVER} not found")),
    ),
    st.builds(lambda make, daemon: make(daemon=daemon), st.sampled_from((no_daemon, refusal, silence)), daemons),
    st.builds(lambda daemon: reply("quit", daemon=daemon), daemons),
    st.builds(
        lambda command, stdout, daemon: reply(command, stdout, daemon=daemon),
        st.sampled_from((f"get_active_thread_percentage {SERVER}", f"get_device_pinned_mem_limit {SERVER} 0")),
        st.sampled_from(("40.0", "3G", "", f"Server {SERVER} not found", "FAULT")),
        daemons,
    ),
)
log_lines = st.one_of(
    st.builds(lambda text, daemon: control_log(text, daemon=daemon)[0], st.sampled_from(CONTROL_SAYS), daemons),
    st.builds(
        lambda text, server, daemon: server_log(text, server=server, daemon=daemon)[0],
        st.sampled_from(SERVER_SAYS),
        server,
        daemons,
    ),
    st.builds(
        lambda text, server, daemon: replace(server_log(text, server=server, daemon=daemon)[0], file="stdout"),
        st.sampled_from(SERVER_SAYS),
        server,
        daemons,
    ),
)
readings = st.one_of(
    st.builds(
        lambda mps, beside, server, gpu, energy, mig: gpu_reading(
            mps, beside=beside, server=server, gpu=gpu, energy_millijoules=energy, mig_mode=mig
        ),
        some_clients,
        some_clients,
        st.none() | server,
        st.sampled_from((GPU, OTHER_GPU)),
        st.none() | st.integers(0, 1000),
        st.sampled_from((None, False, False, True)),
    ),
    st.builds(lambda gpu: GpuReading(at=AT, gpu=gpu, problem=failure("lost")), st.sampled_from((GPU, OTHER_GPU))),
    st.builds(
        look,
        st.sampled_from(("nvml", "log", "control")),
        problem=st.sampled_from((None, None, failure("blind"), HANGS)),
    ),
)
lives = st.one_of(
    st.builds(lambda pid, ticks: process(pid, ticks=ticks), any_pid, ticks),
    st.builds(lambda pid, ticks: exited(pid, ticks=ticks), any_pid, ticks),
    st.builds(
        lambda pid, daemon: daemon_process(pid, daemon=daemon), st.sampled_from((None, CONTROL, CONTROL + 1)), daemons
    ),
    st.builds(exited, st.sampled_from((CONTROL, CONTROL + 1))),
    st.builds(
        lambda daemon, file, problem: LogFile(at=AT, daemon=daemon, file=file, problem=problem),
        daemons,
        st.sampled_from(("control.log", "server.log")),
        st.none() | st.just("gone"),
    ),
)

witnesses = st.one_of(
    st.builds(
        lambda state, pid, ticks: standing(state, pid, ticks=ticks),
        st.sampled_from("SRDTt"),
        st.sampled_from((CONTROL, CONTROL + 1, *SERVERS)),
        st.none() | ticks,
    ),
    st.builds(
        lambda listening, daemon: socket(listening, daemon=daemon), st.sampled_from((True, False, None)), daemons
    ),
    st.builds(lambda pid, daemon: holder(pid, daemon=daemon), st.sampled_from((None, CLIENT)), daemons),
    st.builds(
        lambda active, result: unit_state(active, result=result),
        st.sampled_from(("active", "inactive", "failed", "deactivating", "activating")),
        st.sampled_from(("success", "signal")),
    ),
    st.builds(lambda left, daemon: daemon_process(None, left=left, daemon=daemon), st.booleans(), daemons),
    st.builds(
        lambda daemon: DaemonFound(
            at=AT, daemon=daemon, pipe_directory=daemon, log_directory="/log", expected=True, unit=UNIT
        ),
        daemons,
    ),
)

gaps = st.sampled_from((0.0, 0.01, 0.3, 0.7, 1.1, 2.5, 6.0, 40.0, 400.0))


def timed(steps: Iterable[tuple[float, Observation]]) -> list[Observation]:
    """Return the observations, each at this time after the one before."""
    at, seen = AT, []
    for gap, each in steps:
        at += gap
        seen.append(replace(each, at=at))
    return seen


observations = st.one_of(replies, log_lines, readings, lives, witnesses)
timelines = st.lists(st.tuples(gaps, observations), max_size=60).map(timed)
"""Random observations. They need not be consistent, but time does not go back."""

untimely = st.lists(st.tuples(gaps | st.sampled_from((-0.2, -30.0)), observations), max_size=60).map(timed)
"""Random observations with a clock that may be set back."""
