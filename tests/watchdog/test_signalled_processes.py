"""Which processes may get a signal: facts of /proc decide, and a PID that a log line names is never enough."""

from typing import Any

import pytest

from exporter.model.action import Action, EndProcess
from exporter.model.identity import ProcessIdentity
from exporter.model.observation import DaemonProcess, Observation
from exporter.model.reason import ReasonCode
from exporter.parse.proc import MpsProgram, mps_program
from tests.builders import (
    AT,
    CLIENT,
    CONTROL,
    DAEMON,
    FAULT_BLOCK,
    SERVER,
    active,
    at_work,
    clients,
    control_log,
    daemon_process,
    gpu_reading,
    look,
    process,
    server_log,
    status,
)
from tests.watchdog.watched_daemon import (
    DEATH,
    HUNG,
    KILL,
    NEXT,
    WatchedDaemon,
    alive,
    asks_a_server,
    dies,
    hangs,
    silences,
    suspended,
)

FORGED = 4711
OTHER_SERVER = 514
SERVER_NAME = "nvidia-cuda-mps-server"


def forged(pid: int = FORGED, *, at: float = AT + 1) -> tuple[Observation, ...]:
    """Return lines with which any user can make a PID look like a server of the daemon."""
    return (
        *control_log(f"Starting new server {pid} for user 0", at=at, pid=pid),
        *server_log("Server has started", active(), server=pid, at=at),
    )


def child(pid: int = OTHER_SERVER, parent: int | None = CONTROL, **known: Any) -> Observation:
    """Return what /proc shows of a server of this parent."""
    return process(pid, at=AT + 1, parent=parent, **{"uid": 0, "user": "root", "command": SERVER_NAME, **known})


def ended(action: Action) -> list[int]:
    """Return the PIDs that an action ends."""
    return [step.identity.pid for step in action.steps if isinstance(step, EndProcess)]


def test_a_forged_line_adds_no_server_to_end(subtests: pytest.Subtests) -> None:
    for reading in [
        child(FORGED, parent=CONTROL + 1),
        child(FORGED, parent=None),
        child(FORGED, parent=1),
        child(FORGED, ticks=CONTROL * 100 - 1),
        child(FORGED, command="python3"),
    ]:
        with subtests.test(reading=reading):
            post = WatchedDaemon()
            post.observe(*forged(), reading)
            post.observe(*dies())

            assert ended(post.actions[0]) == [SERVER]


@pytest.mark.parametrize(("uid", "remembered"), [(1001, [SERVER]), (1002, []), (0, [])])
def test_a_server_of_an_ordinary_user_has_the_same_user(uid: int, remembered: list[int]) -> None:
    started = DaemonProcess(at=AT, daemon=DAEMON, pid=CONTROL, start_ticks=CONTROL * 100, uid=1001)
    post = WatchedDaemon(started, *at_work(), child(SERVER, uid=uid))

    pids: list[int] = [each.pid for each in post.watch.children]
    assert pids == remembered


def test_a_forged_exit_does_not_make_the_watchdog_forget_a_server() -> None:
    post = WatchedDaemon()
    post.observe(*control_log(f"Server {SERVER} exited with status 0", at=AT + 1))
    post.observe(*dies())

    assert ended(post.actions[0]) == [SERVER]


def test_remembers_a_server_until_its_exit_or_the_reuse_of_its_pid() -> None:
    post = WatchedDaemon()
    post.observe(*forged(OTHER_SERVER), child(OTHER_SERVER))
    assert post.watch.children == (
        ProcessIdentity(pid=SERVER, start_ticks=SERVER * 100),
        ProcessIdentity(pid=OTHER_SERVER, start_ticks=OTHER_SERVER * 100),
    )

    post.observe(process(SERVER, at=AT + 2, ticks=99_999_999))
    assert [each.pid for each in post.watch.children] == [OTHER_SERVER]


def test_the_servers_of_another_daemon_process_are_not_remembered() -> None:
    post = WatchedDaemon()
    post.observe(daemon_process(NEXT, at=AT + 1))

    assert post.watch.children == ()


def test_limits_the_remembered_servers() -> None:
    post = WatchedDaemon()
    for pid in range(5000, 5100):
        post.observe(*forged(pid), child(pid))

    assert len(post.watch.children) == 16


def test_ends_no_hung_server_without_a_parent_in_proc() -> None:
    post = WatchedDaemon(allow=HUNG)
    post.observe(*forged(), child(FORGED, parent=CONTROL + 1), suspended(FORGED))
    post.until(DEATH + 200)

    assert post.actions == []
    assert post.watch.reason is not None
    assert post.watch.reason.code is ReasonCode.SERVER_PARENT_UNKNOWN


def test_a_log_line_does_not_select_the_server_to_end() -> None:
    post = WatchedDaemon(allow=HUNG)
    post.observe(*forged(OTHER_SERVER), child(OTHER_SERVER))
    post.observe(*asks_a_server(f"get_server_status {OTHER_SERVER}"), *silences())
    post.until(DEATH + 200)

    assert [each for each in post.actions if each.kind == "end_server"] == []


def test_a_hung_daemon_is_ended_with_its_own_servers_only() -> None:
    post = WatchedDaemon()
    post.observe(*forged(), child(FORGED, parent=CONTROL + 1), *hangs())
    post.until(DEATH + 90)

    assert ended(post.actions[0]) == [CONTROL, SERVER]


STRUCK = AT + 10


def faulted(*seen: Observation, reading: Observation | None = None) -> WatchedDaemon:
    """Return a watchdog some time after a fault that CLIENT holds up, as the daemon confirms."""
    start = [*alive(CLIENT), *([] if reading is None else [reading])]
    post = WatchedDaemon(*start, allow=KILL)
    post.observe(*server_log(*FAULT_BLOCK, at=STRUCK), status("FAULT", at=STRUCK + 1), clients(CLIENT, at=STRUCK + 1))
    post.observe(*seen)
    post.until(STRUCK + 200)
    return post


def test_ends_a_client_that_the_daemon_and_nvml_still_list() -> None:
    assert ended(faulted(gpu_reading([CLIENT], at=STRUCK + 2)).actions[0]) == [CLIENT]


def test_ends_a_client_that_the_daemon_lists_if_nvml_was_not_read_since() -> None:
    assert ended(faulted().actions[0]) == [CLIENT]


def test_ends_no_client_that_nvml_no_longer_shows() -> None:
    assert faulted(gpu_reading([601], at=STRUCK + 2)).actions == []


@pytest.mark.parametrize("command", [SERVER_NAME, "nvidia-cuda-mps-control"])
def test_ends_no_mps_program_as_an_affected_client(command: str) -> None:
    assert faulted(reading=process(CLIENT, command=command)).actions == []


def test_the_executable_shows_which_mps_program_a_process_runs(subtests: pytest.Subtests) -> None:
    for executable, command, program in [
        ("/usr/bin/nvidia-cuda-mps-server", "x", MpsProgram.SERVER),
        ("/usr/bin/nvidia-cuda-mps-control", SERVER_NAME, MpsProgram.CONTROL),
        ("/usr/bin/nvidia-cuda-mps-server (deleted)", None, MpsProgram.SERVER),
        (None, SERVER_NAME, MpsProgram.SERVER),
        (None, "nvidia-cuda-mps", MpsProgram.CONTROL),
        ("/usr/bin/python3", SERVER_NAME, MpsProgram.SERVER),
        ("/usr/bin/python3", "python3", None),
        (None, None, None),
    ]:
        with subtests.test(executable=executable, command=command, program=program):
            assert mps_program(executable, command) is program


def test_a_recording_without_parents_leads_to_no_signal() -> None:
    post = WatchedDaemon(
        daemon_process(), *(each for each in alive() if each != alive()[-1]), child(SERVER, parent=None)
    )
    post.observe(*dies(), look("log", at=DEATH + 5))

    assert ended(post.actions[0]) == []
