"""The commands that a person is shown: for a shell, for the daemon of which they speak, and safe to copy."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from exporter.model.daemon import Daemon, NamedBy
from exporter.model.identity import ProcessIdentity
from exporter.model.incident import ClientDetails
from exporter.model.node import Node
from exporter.model.observation import DaemonProcess, DirectoryReading, UnitState
from exporter.model.settings import Limits
from exporter.model.watchdog import Condition, Diagnosis, Quarantine, WatchdogPhase, WatchdogState
from exporter.report.node_findings import findings
from exporter.report.problems import DaemonProblem
from exporter.report.remedy import (
    LONGEST_COMMAND,
    Address,
    address_of,
    clients_beside,
    command_to_end,
    command_to_end_server,
    command_to_kill,
    commands_to_kill,
    commands_to_restart,
    commands_to_resume,
    commands_to_signal,
    commands_to_start,
    control_command,
    step_to_start,
)
from exporter.report.text import Style
from exporter.watchdog.context import DaemonPolicy, Policy
from tests.builders import (
    AT,
    CONTROL,
    DAEMON,
    GPU,
    OTHER_GPU,
    blocked_recovery,
    circuit_open,
    daemon_down,
    daemon_process,
    drifted,
    exited,
    faulted,
    gpu_reading,
    idle,
    node,
    process,
    reduced,
    three_clients,
    watched,
    with_fields,
)
from tests.status import commands_of, details_of, status_table

HOSTILE = ["/tmp/a b", "/tmp/$(reboot)", "/tmp/`reboot`", "/tmp/a'; reboot; '", "/tmp/a;b", "/tmp/-d", "/tmp/a|b>c&"]
NOT_ONE_LINE = ["/tmp/a\nreboot", "/tmp/\x1b[2J", "/tmp/\u202ecod", "/tmp/\udcff"]
PIPE, LOG = "/run/nvidia/mps/training/pipe", "/run/nvidia/mps/training/log"


def at(directory: str) -> Address:
    return Address(pipe_directory=directory, server_ends={513: "shutdown_server 513 -f"})


def moved(present: Node, pipe: str = PIPE, log: str = LOG, **changed: object) -> Node:
    """Return the node with other directories of the daemon."""
    daemon = with_fields(present.daemons[DAEMON], pipe_directory=pipe, log_directory=log, **changed)
    return replace(present, daemons={DAEMON: daemon})


def of_user(present: Node, uid: int | None) -> Node:
    """Return the node with a daemon process of this user."""
    known = DaemonProcess(at=AT, daemon=DAEMON, pid=CONTROL, start_ticks=1, uid=uid)
    watch, daemon = replace(present.watches.get(DAEMON, WatchdogState()), process=known), present.daemons[DAEMON]
    daemon = replace(daemon, runtime=replace(daemon.runtime, process=None if daemon.runtime.process is None else known))
    return replace(present, daemons={DAEMON: daemon}, watches={DAEMON: watch})


def started(present: Node, policy: Policy | None = None) -> tuple[str, ...]:
    return commands_to_start(present, present.daemons[DAEMON], policy)


def test_ends_a_client_with_kill_and_not_through_mps() -> None:
    address = Address(pipe_directory=PIPE, ending={"601-1": (601,)})
    assert command_to_kill(ClientDetails(pid=601, client="601-1"), address) == "kill -KILL 601"


def test_commands_for_very_many_clients_name_each_process_once_and_are_no_longer_than_a_line() -> None:
    clients = [ClientDetails(pid=pid, client=f"{pid}-1") for pid in range(4_000_000, 4_001_024)]
    ending = {each.client: (each.pid, 4_100_000) for each in clients}
    commands = commands_to_kill(clients, Address(pipe_directory=PIPE, ending=ending))
    assert max(map(len, commands)) <= LONGEST_COMMAND
    named = [word for command in commands for word in command.removeprefix("kill -KILL ").split()]
    assert sorted(named) == sorted([*(str(each.pid) for each in clients), "4100000"])


def test_names_no_process_that_is_not_known_to_run() -> None:
    """An incident outlives its processes, and another process can have the PID."""
    client = ClientDetails(pid=601, client="601-1")
    for ending in ({}, {"601-2": (601,)}, {"602-1": (602,)}, {"601-1": ()}):
        assert command_to_kill(client, Address(pipe_directory=PIPE, ending=ending)) is None
    assert command_to_kill(client, None) is None
    assert command_to_end_server(512, at(PIPE)) is None
    for pid in (-601, -1, 0, 1):
        assert command_to_end(Node(processes={pid: process(pid)}), pid) is None


def test_signals_only_a_process_that_was_read_since_the_start() -> None:
    """The diagnosis may be from the state file."""
    stored = Diagnosis(
        condition=Condition.SUSPENDED, since=AT, process=ProcessIdentity(pid=CONTROL, start_ticks=CONTROL * 100)
    )
    present = reduced(daemon_process(CONTROL)).node
    assert commands_to_signal(present, stored) == (f"kill -CONT {CONTROL}",)
    assert commands_to_signal(reduced(daemon_process(CONTROL + 1)).node, stored) == ()
    assert commands_to_signal(reduced(daemon_process(CONTROL), exited(CONTROL)).node, stored) == ()
    assert commands_to_signal(Node(processes={CONTROL: process(CONTROL, ticks=7)}), stored) == ()
    assert commands_to_signal(Node(processes={CONTROL: process(CONTROL)}), stored) == (f"kill -CONT {CONTROL}",)
    exited_client = replace(process(CONTROL), ended=True)
    assert commands_to_signal(Node(processes={CONTROL: exited_client}), stored) == ()


@pytest.mark.parametrize("directory", NOT_ONE_LINE)
def test_writes_no_command_for_an_unprintable_directory(directory: str) -> None:
    assert command_to_end_server(513, at(directory)) is None
    assert started(moved(daemon_down(), pipe=directory)) == ()
    assert commands_to_resume(directory) == ()


def test_writes_no_command_without_an_address() -> None:
    assert command_to_end_server(513, None) is None
    assert control_command("quit", None) is None


def test_writes_no_command_for_a_server_without_a_pid() -> None:
    assert command_to_end_server(-513, at(DAEMON)) is None


def test_resume_command_quotes_the_name(subtests: pytest.Subtests) -> None:
    for name in HOSTILE:
        with subtests.test(name=name):
            assert shlex.split(*commands_to_resume(name)) == ["cuda-mps-exporter", "resume", name]


@pytest.mark.parametrize(("uid", "prefix"), [(None, ""), (0, ""), (1000, "sudo -u '#1000' env ")])
def test_starts_a_daemon_as_its_own_user(uid: int | None, prefix: str) -> None:
    (command,) = started(of_user(moved(daemon_down()), uid))

    assert command == f"{prefix}CUDA_MPS_PIPE_DIRECTORY={PIPE} CUDA_MPS_LOG_DIRECTORY={LOG} nvidia-cuda-mps-control -d"


def test_starts_a_daemon_with_the_environment_of_the_watchdog() -> None:
    daemon_policy = DaemonPolicy(
        command=("env", "A=b c", "/opt/mps control", "-d"), limits=Limits(active_thread_percentage=40.0)
    )
    present = moved(daemon_down(), runtime__visible_devices=f"{GPU},{OTHER_GPU}")

    (command,) = started(present, Policy(daemon_policies={DAEMON: daemon_policy}, program="/opt/other"))

    words = shlex.split(command)
    assert words == [
        f"CUDA_MPS_PIPE_DIRECTORY={PIPE}",
        f"CUDA_MPS_LOG_DIRECTORY={LOG}",
        f"CUDA_VISIBLE_DEVICES={GPU},{OTHER_GPU}",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=40",
        "env",
        "A=b c",
        "/opt/mps control",
        "-d",
    ]


@pytest.mark.parametrize(
    ("gpus", "known", "policy", "unknown"),
    [
        ((GPU, OTHER_GPU), False, Policy(), True),
        ((GPU,), False, Policy(), False),
        ((GPU, OTHER_GPU), True, Policy(), False),
        ((GPU, OTHER_GPU), False, Policy(daemon_policies={DAEMON: DaemonPolicy(unit="mps.service")}), False),
        ((GPU, OTHER_GPU), False, Policy(daemon_policies={DAEMON: DaemonPolicy(command=("start-mps",))}), False),
    ],
    ids=["several GPUs", "one GPU", "known process", "unit", "configured command"],
)
def test_says_that_the_gpus_of_a_daemon_are_unknown(
    gpus: tuple[str, ...], known: bool, policy: Policy, unknown: bool
) -> None:
    """Without its CUDA_VISIBLE_DEVICES, it would start with all GPUs of the node, also with those of other daemons."""
    seen = (gpu_reading(gpu=gpu, index=index) for index, gpu in enumerate(gpus))
    present = reduced(*seen, start=node()).node
    present = of_user(present, 0) if known else present
    step = step_to_start(present, present.daemons[DAEMON], policy, "Start it.")
    assert step.commands
    assert step.text.startswith("Start it. The exporter does not know the daemon's GPUs.") == unknown


def test_starts_a_daemon_with_its_protocol_although_the_watchdog_has_no_state() -> None:
    """`status` without a service, and `doctor`, collect once and evaluate nothing."""
    process = DaemonProcess(
        at=AT, daemon=DAEMON, pid=CONTROL, start_ticks=1, uid=0, protocol=3, options=("-m", "-a", "/etc/mps.toml")
    )
    present = moved(idle(), runtime__process=process, runtime__protocol=3)

    stop, start = commands_to_restart(present, present.daemons[DAEMON], None)

    assert stop == f"CUDA_MPS_PIPE_DIRECTORY={PIPE} nvidia-cuda-mps-control -q"
    assert "CUDA_MPS_PROTOCOL_VERSION=3" in shlex.split(start)
    assert start.endswith("nvidia-cuda-mps-control -d -m -a /etc/mps.toml")


@pytest.mark.parametrize("named", ["configuration", "daemon"])
def test_starts_a_daemon_through_its_unit(named: str) -> None:
    unit = "nvidia-cuda-mps@0.service"
    by_configuration = named == "configuration"
    present = moved(daemon_down(), declared__unit=None if by_configuration else unit)
    policy = Policy(daemon_policies={DAEMON: DaemonPolicy(unit=unit if by_configuration else None)})

    assert started(present, policy) == (f"systemctl restart {unit}",)


def test_resets_a_unit_at_its_start_limit_first() -> None:
    unit = "mps.service"
    state = UnitState(at=AT, unit=unit, load="loaded", active="failed", sub="failed", result="start-limit-hit")
    present = replace(moved(daemon_down()), units={unit: state})

    commands = started(present, Policy(daemon_policies={DAEMON: DaemonPolicy(unit=unit)}))

    assert commands == (f"systemctl reset-failed {unit}", f"systemctl restart {unit}")


def in_container(**changed: object) -> Node:
    """A daemon of a container, as the finder names it."""
    name = f"{DAEMON}@0123456789ab"
    daemon = replace(
        idle().daemons[DAEMON],
        name=name,
        declared=replace(idle().daemons[DAEMON].declared, by=NamedBy.DISCOVERED, expected=False),
    )
    daemon = with_fields(daemon, **changed)
    return replace(idle(), daemons={name: daemon})


def only(present: Node) -> Daemon:
    (daemon,) = present.daemons.values()
    return daemon


def test_reaches_a_daemon_in_a_container_through_its_process() -> None:
    present = in_container()

    command = command_to_end_server(513, address_of(present, only(present).name))

    assert command == (
        f'echo "shutdown_server 513 -f" | nsenter -t {CONTROL} -m -- env CUDA_MPS_PIPE_DIRECTORY={DAEMON}'
        " nvidia-cuda-mps-control"
    )


def test_sends_no_pids_to_a_daemon_in_another_pid_namespace() -> None:
    present = in_container(runtime__in_foreign_namespace=True)

    address = address_of(present, only(present).name)

    assert command_to_end_server(513, address) is None
    assert "nsenter" in (control_command("get_server_list", address) or "")


def test_creates_a_directory_that_was_removed_before_the_daemon_starts() -> None:
    daemon, removed = only(daemon_down()), DirectoryReading(exists=False)
    for directory, creates in ((None, False), (removed, True)):
        present = with_fields(daemon, runtime__directory=directory)
        (line,) = started(replace(daemon_down(), daemons={DAEMON: present}))
        assert line.startswith(f"mkdir -p {DAEMON} ") is creates


@pytest.mark.parametrize("by", [NamedBy.DEVICE_PLUGIN, NamedBy.DRA, NamedBy.GKE])
def test_writes_no_command_that_starts_a_daemon_of_kubernetes_beside_its_pod(by: NamedBy) -> None:
    """The exporter may have started after the daemon ended, so that its pod is unknown."""
    present = daemon_down()
    assert started(present)
    present = replace(present, daemons={DAEMON: with_fields(only(present), declared__by=by, declared__expected=True)})
    shown = [each for each in findings(present, AT + 15) if each.problem is DaemonProblem.DAEMON_DOWN]

    assert started(present) == ()
    assert started(present, Policy(daemon_policies={DAEMON: DaemonPolicy(command=("start-mps",))}))
    assert [(each.steps[0].commands, each.steps[0].ends) for each in shown] == [((), None)]
    assert "Delete its pod" in shown[0].steps[0].text


def in_pod(present: Node) -> Node:
    """Return the node with its daemon in a pod."""
    daemon = only(present)
    cgroup = "0::/kubepods.slice/kubepods-pod6f9a2c1e_1b5d_4c57_9b0e_3d0f5a7c2b11.slice\n"
    known = DaemonProcess(at=AT, daemon=DAEMON, pid=CONTROL, start_ticks=1, uid=0, cgroup=cgroup)
    return replace(present, daemons={DAEMON: with_fields(daemon, runtime__last_process=known)})


def test_writes_no_command_that_starts_a_daemon_beside_a_pod_without_a_known_name() -> None:
    assert started(in_pod(daemon_down())) == ()


def test_counts_the_clients_of_all_daemons_of_a_pod() -> None:
    """The device plugin has a daemon for each resource in one pod."""
    present = in_pod(three_clients())
    daemon = only(present)
    clients = {pid + 1000: replace(client, pid=pid + 1000) for pid, client in daemon.clients.items()}
    beside = replace(daemon, name="/run/nvidia/mps/beside/pipe", clients=clients)
    elsewhere = replace(only(three_clients()), name="/run/nvidia/mps/elsewhere/pipe")
    present = replace(present, daemons={each.name: each for each in (daemon, beside, elsewhere)})

    assert clients_beside(present, daemon) == 6
    assert clients_beside(present, elsewhere) == 3
    unknown = with_fields(beside, connections__listed_at=None)
    assert clients_beside(replace(present, daemons={**present.daemons, beside.name: unknown}), daemon) is None


def test_writes_no_commands_for_an_ended_daemon_of_a_container() -> None:
    present = in_container(runtime__process=None)

    assert commands_to_start(present, only(present), None) == ()
    assert address_of(present, only(present).name) is None


def shown(present: Node, policy: Policy) -> Iterator[str]:
    """All commands that are shown for a node."""
    for each in findings(present, AT + 20, policy):
        yield from commands_of(each)
    for incident in present.incidents.values():
        address = address_of(present, incident.daemon, policy)
        for line in details_of(replace(incident, stuck=True), AT + 20, address):
            yield from (piece.text for piece in line.pieces if piece.style is Style.COMMAND)


def quarantined(present: Node, action: str) -> Node:
    watch = replace(present.watches.get(DAEMON, WatchdogState()), phase=WatchdogPhase.QUARANTINED)
    watch = replace(watch, quarantine=Quarantine(at=AT, xid=95, gpu=GPU, action=action))
    return replace(present, watches={DAEMON: watch})


NODES = {
    "dead": daemon_down(),
    "circuit open": circuit_open(),
    "limits drifted": drifted(),
    "fault": faulted(),
    "needs a reset": quarantined(idle(), "RESET_GPU"),
    "needs a reboot": quarantined(idle(), "RESTART_BM"),
    "dead and needs a reset": quarantined(daemon_down(), "RESET_GPU"),
}


def test_commands_name_the_directory_and_start_commands_the_user(subtests: pytest.Subtests) -> None:
    for uid, directory, state in product([0, 1000], [PIPE, *HOSTILE], NODES):
        with subtests.test(uid=uid, directory=directory, state=state):
            commands = list(shown(of_user(moved(NODES[state], pipe=directory, log=f"{directory}/log"), uid), Policy()))

            assert commands
            for command in commands:
                words = shlex.split(command)
                if "nvidia-cuda-mps-control" in words:
                    assert f"CUDA_MPS_PIPE_DIRECTORY={directory}" in words
                if words[-1] == "-d":
                    assert f"CUDA_MPS_LOG_DIRECTORY={directory}/log" in words
                    assert ("#1000" in words) is (uid == 1000)


OF_PROTOCOL_2 = re.compile(r"echo|[gs]et_|shutdown_server|terminate_client|\bquit\b|start_server|lspart|device_query")


def with_protocol_3(present: Node) -> Node:
    """Return the node with a daemon of protocol 3, whose servers belong to a user and have no memory limit."""
    daemon = present.daemons[DAEMON]
    servers = {
        pid: replace(each, name="uid_1000", namespaces={"default": Limits()}, limits=Limits())
        for pid, each in daemon.servers.items()
    }
    return moved(present, runtime__protocol=3, servers=servers)


def test_a_daemon_of_protocol_3_gets_no_command_of_protocol_2(subtests: pytest.Subtests) -> None:
    for state in NODES:
        with subtests.test(state=state):
            present = with_protocol_3(NODES[state])
            found = list(shown(present, Policy()))

            assert [each for each in found if OF_PROTOCOL_2.search(each)] == []
            if state == "limits drifted":
                assert any(" server set uid_1000 --pinned-memory-limit=2G" in each for each in found)
            if state == "fault":
                assert any(" server delete uid_1000 --force" in each for each in found)


def test_a_daemon_with_a_unit_is_only_started_and_stopped_through_it(subtests: pytest.Subtests) -> None:
    for state in NODES:
        with subtests.test(state=state):
            unit = "mps.service"
            for command in shown(moved(NODES[state], declared__unit=unit), Policy()):
                words = shlex.split(command)
                assert words[-1] != "-d"
                assert not any(word.startswith("quit") for word in words)
                assert words[0] != "systemctl" or words[-1] in (unit, "reboot")


ROOT = Path(__file__).parents[2]
TEXTS = [*ROOT.glob("alerts/*.yml"), *ROOT.glob("alerts/runbooks/*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "README.md"]


def test_documented_commands_name_a_directory(subtests: pytest.Subtests) -> None:
    for text in TEXTS:
        with subtests.test(text=text):
            shown = re.sub(r"\s+", " ", text.read_text())
            for found in re.finditer(
                r"(\| *)(?:timeout \d+ )?nvidia-cuda-mps-control|nvidia-cuda-mps-control -d\b", shown
            ):
                assert "CUDA_MPS_PIPE_DIRECTORY=" in shown[: found.end()], found[0]


def test_no_other_module_writes_commands_to_a_daemon() -> None:
    made = re.compile(r"\| *nvidia-cuda-mps-control|nvidia-cuda-mps-control -d\b")
    modules = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("exporter/**/*.py") if _shows(path, made)}

    assert modules <= {"exporter/doctor/daemons.py"}, "where no daemon is known, NVIDIA's default one is started"


def _shows(path: Path, made: re.Pattern[str]) -> bool:
    """Whether a string, and no documentation, has such a command."""
    return any(made.search(line) and '"""' not in line and "`" not in line for line in path.read_text().splitlines())


def test_status_shows_a_command_that_begins_another_command() -> None:
    diagnosis = Diagnosis(
        condition=Condition.SERVER_UNRESPONSIVE, since=AT, process=ProcessIdentity(pid=60, start_ticks=1)
    )
    present = blocked_recovery()
    present = replace(present, processes={**present.processes, 60: process(60, ticks=1)})
    shown = status_table(watched(present, diagnosis=diagnosis))
    killed = [line.strip() for line in shown.splitlines() if "kill -KILL" in line]
    assert killed == ["kill -KILL 601", "kill -KILL 60"]
