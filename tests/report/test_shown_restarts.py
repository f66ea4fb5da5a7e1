"""The commands that a person is shown are the steps that the watchdog takes, for each kind of daemon."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest

from exporter.model.action import ActionKind, ActionStep, EndProcess, GiveCommand, SaveEvidence
from exporter.model.observation import DaemonProcess, Observation, PodFound
from exporter.model.settings import AllowedAction, Limits, Mode
from exporter.report.remedy import (
    address_of,
    command_to_end_server,
    commands_to_restart,
    commands_to_start,
    commands_to_stop,
    control_command,
    lines_of,
)
from exporter.watchdog.context import DaemonPolicy, Policy
from tests.builders import CONTROL, DAEMON, POD, SERVER, daemon_process, idle, process, with_fields
from tests.watchdog.watched_daemon import (
    BY_COMMAND,
    BY_UNIT,
    DEATH,
    UNIT,
    WatchedDaemon,
    alive,
    dies,
    hangs,
    unit,
)

KILL = f"kill -KILL {CONTROL} {SERVER}"
VARIABLES = f"CUDA_MPS_PIPE_DIRECTORY={DAEMON} CUDA_MPS_LOG_DIRECTORY={idle().daemons[DAEMON].log_directory}"
START = f"{VARIABLES} nvidia-cuda-mps-control -d"
DELETE = "kubectl delete pod --namespace team-a mps-0"
RESTART = f"systemctl restart {UNIT}"
OF_ROOT = daemon_process()
LIMITED = replace(BY_COMMAND, limits=Limits(pinned_memory={0: 2 << 30}, active_thread_percentage=40.0))


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A daemon that hangs, the lines that end it, and the line that starts it."""

    process: DaemonProcess = OF_ROOT
    policy: DaemonPolicy = BY_COMMAND
    owner: int | None = None
    seen: tuple[Observation, ...] = ()
    end: tuple[str, ...] = (KILL,)
    start: str = START

    def watched(self) -> WatchedDaemon:
        post = WatchedDaemon(
            self.process,
            *alive()[1:],
            *self.seen,
            daemon_policy=self.policy,
            allow=frozenset({AllowedAction.DELETE_POD}),
        )
        owned = with_fields(post.daemon, declared__owner=self.owner)
        post.node = replace(post.node, daemons={DAEMON: owned})
        return post


OF_USER = replace(daemon_process(unit="user@1000.service"), uid=1000)
OF_POD = replace(daemon_process(), cgroup=f"0::/kubepods/burstable/pod{POD}/{'a' * 64}\n")
BY_HAND = "session-3.scope"
KINDS: Mapping[str, Kind] = {
    "process": Kind(),
    "process of the user who was configured": Kind(owner=1000, start=f"sudo -u '#1000' env {START}"),
    "process in another user's manager": Kind(
        process=OF_USER, end=(f"kill -KILL {CONTROL}",), start=f"sudo -u '#1000' env {START}"
    ),
    "unit": Kind(process=daemon_process(unit=UNIT), policy=BY_UNIT, seen=(unit("active"),), end=(), start=RESTART),
    "process outside the configured unit": Kind(
        process=daemon_process(unit=BY_HAND), policy=BY_UNIT, seen=(unit("inactive"),), start=RESTART
    ),
    "pod": Kind(
        process=OF_POD,
        policy=DaemonPolicy(),
        seen=(PodFound(at=DEATH, uid=POD, name="mps-0", namespace="team-a"),),
        end=(),
        start=DELETE,
    ),
    "protocol 3": Kind(
        process=replace(OF_ROOT, protocol=3),
        start=f"{VARIABLES} CUDA_MPS_PROTOCOL_VERSION=3 nvidia-cuda-mps-control -d",
    ),
    "limits": Kind(
        policy=LIMITED, start=f"{VARIABLES} CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=40 nvidia-cuda-mps-control -d"
    ),
}


def steps(post: WatchedDaemon) -> tuple[ActionStep, ...]:
    """Return the steps of the restart, without those that set limits: these are shown when the daemon lacks them."""
    (action,) = (each for each in post.actions if each.kind is ActionKind.RESTART)
    assert action.steps[0] == SaveEvidence()
    return tuple(each for each in action.steps if not isinstance(each, GiveCommand))


@pytest.mark.parametrize("kind", KINDS)
def test_the_lines_for_a_hung_daemon_are_the_steps_of_its_restart(kind: str) -> None:
    known = KINDS[kind]
    post = known.watched()
    post.observe(*hangs())
    post.until(DEATH + 110)

    shown = commands_to_restart(post.node, post.daemon, post.policy)

    assert shown == lines_of(steps(post)) == (*known.end, known.start)


@pytest.mark.parametrize("kind", KINDS)
def test_the_line_that_starts_a_daemon_is_the_step_that_starts_it(kind: str) -> None:
    """A server that is left is only ended by the watchdog: its clients are not known any more."""
    known = KINDS[kind]
    post = known.watched()
    post.observe(*dies())
    if known.policy.unit is not None:
        post.observe(unit("failed", at=DEATH + 1))
    post.until(DEATH + 30)

    shown = commands_to_start(post.node, post.daemon, post.policy)

    assert shown == lines_of(each for each in steps(post) if not isinstance(each, EndProcess)) == (known.start,)


def test_the_commands_that_set_limits_are_those_of_the_watchdog() -> None:
    post = WatchedDaemon(daemon_policy=LIMITED).observe(*dies())
    post.until(DEATH + 30)

    commands = [each for each in post.actions[0].steps if isinstance(each, GiveCommand)]
    given = [each for each in commands if each.command.startswith("set_")]

    address = address_of(post.node, DAEMON, post.policy)
    assert [control_command(each.command, address) for each in given] == [
        f'echo "set_default_device_pinned_mem_limit 0 2G" | CUDA_MPS_PIPE_DIRECTORY={DAEMON} nvidia-cuda-mps-control',
        f'echo "set_default_active_thread_percentage 40" | CUDA_MPS_PIPE_DIRECTORY={DAEMON} nvidia-cuda-mps-control',
    ]


@pytest.mark.parametrize(("protocol", "name"), [(2, None), (3, "uid_1000"), (3, "training")])
def test_the_command_that_ends_a_server_is_the_watchdogs(protocol: int, name: str | None) -> None:
    """A named server would lose its settings."""
    daemon = with_fields(idle().daemons[DAEMON], runtime__protocol=protocol)
    server = replace(daemon.servers[SERVER], name=name)
    present = replace(idle(), daemons={DAEMON: replace(daemon, servers={SERVER: server})})
    address, command = address_of(present, DAEMON), daemon.dialect.command_to_end(server, forced=True)

    shown = command_to_end_server(SERVER, address)

    assert (shown is None) is (command is None) is (name == "training")
    assert command is None or shown == control_command(command, address)


def test_ends_no_process_that_is_not_known_to_run() -> None:
    """The PIDs may be from the state file, and other processes may have them."""
    post = KINDS["process"].watched()
    post.observe(*hangs())
    post.until(DEATH + 110)
    post.observe(process(SERVER, at=DEATH + 111, ticks=7))
    assert commands_to_stop(post.node, post.daemon, post.policy) == (f"kill -KILL {CONTROL}",)
    other = with_fields(post.daemon, runtime__process=None)
    unknown = replace(post.node, daemons={DAEMON: other})
    assert commands_to_stop(unknown, other, Policy(mode=Mode.OBSERVE))[0].startswith('echo "quit -t 3" | ')


def test_stops_a_daemon_outside_its_unit_without_the_unit() -> None:
    """The unit's stop would leave it running."""
    post = KINDS["process outside the configured unit"].watched()
    assert commands_to_stop(post.node, post.daemon, post.policy)[0].startswith('echo "quit -t 3" | ')
    in_unit = KINDS["unit"].watched()
    assert commands_to_stop(in_unit.node, in_unit.daemon, in_unit.policy) == (f"systemctl stop {UNIT}",)
