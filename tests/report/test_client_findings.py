"""Findings of clients: full servers, memory, limits, slow neighbours, and processes that bypass MPS."""

import pytest

from exporter.model.contention import Resource
from exporter.model.node import Node
from exporter.model.observation import DirectoryReading
from exporter.model.server import RefusalReason
from exporter.model.settings import Limits, Mode
from exporter.model.values import replace
from exporter.model.watchdog import LimitDrift, LimitEnforcement
from exporter.report.finding import COUNTED_SECONDS, Finding
from exporter.report.node_findings import findings
from exporter.report.problems import DaemonProblem, Entry, NodeProblem
from exporter.report.remedy import MOST_GROUPED
from exporter.watchdog.context import Policy
from tests.builders import (
    AT,
    DAEMON,
    GPU,
    GPU_BYTES,
    MIB,
    OTHER_GPU,
    SERVER,
    at_work,
    changed,
    contended,
    daemon_down,
    drifted,
    faulted,
    full,
    gpu_reading,
    idle,
    look,
    looks,
    memory_filled,
    process,
    reduced,
    server_log,
    three_clients,
    watched,
    with_fields,
)
from tests.status import commands_of
from tests.test_lost_directories import REMOVED, TAKEN, lost


def found_in(present: Node, problem: Entry, at: float | None = None, policy: Policy | None = None) -> list[Finding]:
    """Return the findings of one problem."""
    return [each for each in findings(present, present.at if at is None else at, policy) if each.problem is problem]


def pids(names: tuple[str, ...]) -> list[int]:
    """Return the PIDs at the start of texts."""
    return [int(each.split()[1]) for each in names]


def test_a_server_is_full_with_its_last_slot_and_one_with_a_free_slot_is_not() -> None:
    (found,) = found_in(full(), NodeProblem.CLIENT_SLOTS_FULL)
    assert (found.daemon, found.server, found.values["clients"], found.values["limit"]) == (DAEMON, SERVER, "48", "48")
    assert found.affected == "new clients; 16 were refused so far"
    assert not found_in(full(), NodeProblem.CLIENTS_REFUSED), "it is the same problem"
    clients = full().daemons[DAEMON].clients
    free = changed(full(), clients={pid: each for pid, each in clients.items() if pid != 1000})
    assert not found_in(free, NodeProblem.CLIENT_SLOTS_FULL)
    (refused,) = found_in(free, NodeProblem.CLIENTS_REFUSED, AT + 44)
    assert (refused.since, refused.daemon) == (AT, DAEMON)
    assert refused.text == f"MPS daemon {DAEMON} refused new clients, last 44 s ago; now 47 of 48 slots are used"
    assert "start the refused programs again" in refused.all_steps[0].text
    assert found_in(free, NodeProblem.CLIENTS_REFUSED, AT + COUNTED_SECONDS - 1)
    assert not found_in(free, NodeProblem.CLIENTS_REFUSED, AT + COUNTED_SECONDS)
    never = changed(full(), totals__refused=dict.fromkeys(RefusalReason, 0))
    assert found_in(never, NodeProblem.CLIENT_SLOTS_FULL)[0].affected == "new clients; 0 were refused so far"
    for status, is_problem in ((806, True), (807, False)):  # 807: because of a fault, which is a problem of its own.
        lines = server_log(f"Failed to accept client {{PID: 700, Context ID: 0}} with status {status}", at=AT + 5)
        assert bool(found_in(reduced(*lines, start=faulted()).node, NodeProblem.CLIENTS_REFUSED)) is is_problem


def test_memory_that_a_workload_fills_is_listed_by_size_with_whom_it_affects() -> None:
    (found,) = found_in(memory_filled(), NodeProblem.WORKLOAD_FILLS_MEMORY)
    assert (found.gpu, pids(found.facts)) == (GPU, [601, 600, SERVER])
    assert (found.affected, pids(found.affected_names)) == ("1 client of another workload", [600])
    assert found.facts[0].endswith(f" holds {(GPU_BYTES // MIB) - 66 - 25_000} MiB")
    alike = reduced(*at_work(600, 601, 602), gpu_reading({602: 9_000, 601: 126_000, 600: 9_000}), *looks())
    named = reduced(*(process(pid, user=f"u{pid}") for pid in (600, 601, 602)), start=alike.node).node
    (found,) = found_in(named, NodeProblem.WORKLOAD_FILLS_MEMORY)
    assert pids(found.facts) == [601, 600, 602, SERVER]
    assert (found.affected, pids(found.affected_names)) == ("2 clients of other workloads", [600, 602])


@pytest.mark.parametrize(("percent", "reported"), [(50, False), (51, True)])
def test_a_workload_fills_a_gpu_with_more_than_half_of_it(percent: int, reported: bool) -> None:
    held = {600: GPU_BYTES // 100 * percent // MIB, 601: GPU_BYTES // 100 * 40 // MIB}
    reading = replace(gpu_reading(held), memory_used_bytes=GPU_BYTES)
    owners = (process(pid, user=f"u{pid}") for pid in held)
    present = reduced(*at_work(*held), *owners, reading, *looks()).node
    found = found_in(present, NodeProblem.WORKLOAD_FILLS_MEMORY)
    assert [each.values["free"] for each in found] == (["0 MiB"] if reported else [])


def test_the_largest_client_of_a_workload_that_cannot_be_restarted_has_a_command() -> None:
    (found,) = found_in(memory_filled(), NodeProblem.WORKLOAD_FILLS_MEMORY)
    assert (found.steps[-1].commands, found.steps[-1].ends) == (("kill -TERM 601",), 1)
    assert "by its own means" in found.steps[-1].text


def starving(*slow: int, heavy: int = 600, gpu: str = GPU) -> Node:
    """Return three clients, of which these are slowed down for eleven minutes, the first one most."""
    present = contended(three_clients(), slow[0], heavy, gpu=gpu)
    state = present.contention[gpu]
    since = {pid: present.at - 700 + index for index, pid in enumerate(slow)}
    return replace(present, contention={gpu: replace(state, starved_since=since)})


def test_a_starved_client_is_named_with_its_gpu_and_since_when() -> None:
    present = starving(601)
    (found,) = found_in(present, NodeProblem.CLIENT_STARVED)
    assert (found.client, found.gpu, found.since) == (601, GPU, present.at - 700)
    assert (found.affected, pids(found.affected_names), found.notes) == ("1 client", [601], ())
    assert found.values["client"].startswith("PID 601 (vllm")
    assert found.values.get("neighbours") == "neighbours"
    earlier = replace(present.contention[GPU], starved_since={601: present.at - 700, 777: present.at - 900})
    (found,) = found_in(replace(present, contention={GPU: earlier}), NodeProblem.CLIENT_STARVED)
    assert found.since == present.at - 700, "that is since when another client is starved"
    soon = replace(present.contention[GPU], starved_since={601: present.at - 599})
    assert not found_in(replace(present, contention={GPU: soon}), NodeProblem.CLIENT_STARVED)
    gone = replace(present.contention[GPU], starved_since={777: present.at - 700})
    assert not found_in(replace(present, contention={GPU: gone}), NodeProblem.CLIENT_STARVED)


@pytest.mark.parametrize(
    ("dram", "commands", "text"),
    [
        (0.9, ("export CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50", "kill -TERM 600"), "If that does not help"),
        (None, ("export CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50",), "Ask its owner to start PID 600 (train.py of alice"),
        (0.1, (), "do not limit or move one"),
    ],
    ids=["memory bandwidth", "SMs", "neither"],
)
def test_the_steps_for_a_starved_client_fit_the_resource(
    dram: float | None, commands: tuple[str, ...], text: str
) -> None:
    """The least harmful is first: a limit of threads, which also helps against a stream of memory (measured)."""
    present = starving(601)
    if dram is None:
        state = present.contention[GPU]
        windows = (replace(state.windows[0], resource=Resource.SMS, parts={600: 0.8}),)
        present = replace(present, contention={GPU: replace(state, windows=windows)})
    elif dram < 0.5:
        since = present.contention[GPU].starved_since
        state = contended(three_clients(), 601, 600, dram=dram).contention[GPU]
        present = replace(present, contention={GPU: replace(state, starved_since=since)})
    (found,) = found_in(present, NodeProblem.CLIENT_STARVED)
    assert text in found.steps[-1].text
    assert tuple(command for step in found.steps for command in step.commands) == commands
    assert [step.ends for step in found.steps if "kill" in str(step.commands)] == [1] * (dram == 0.9)
    assert all("by its own means" in step.text for step in found.steps if "kill" in str(step.commands))


def test_bypassing_processes_are_one_problem_since_the_first_of_them() -> None:
    """A process on two GPUs is one process, since it was first seen on any."""
    present = reduced(
        gpu_reading({600: 1540}, beside={802: 64, 801: 32}, at=AT + 20),
        gpu_reading({600: 1540}, beside={802: 64, 801: 32}, at=AT + 22),
        process(802, user="dave"),
        start=three_clients(),
    ).node
    first_seen = present.gpus[OTHER_GPU].bypassing_processes[801].first_seen
    assert first_seen < present.gpus[GPU].bypassing_processes[801].first_seen
    assert found_in(present, NodeProblem.PROCESS_BYPASSING)[0].since is None, "they may be older than the exporter"
    present = replace(present, began_at=AT - 60)
    (found,) = found_in(present, NodeProblem.PROCESS_BYPASSING, AT + 30)
    assert (found.since, found.client, found.values["processes"]) == (first_seen, None, "2 processes")
    assert found.values["gpu"] == "0, 1"
    other_order = replace(present, gpus=dict(reversed(present.gpus.items())))
    assert found_in(other_order, NodeProblem.PROCESS_BYPASSING, AT + 30)[0].since == first_seen
    assert pids(found.affected_names) == [801, 802]
    assert found.affected_names[0].endswith(f" on GPU 0 (32 MiB), GPU 1 (1024 MiB), for {AT + 30 - first_seen:.0f} s")
    assert found.affected == "2 processes without limits, and the MPS clients of the same GPUs"
    (alone,) = found_in(three_clients(), NodeProblem.PROCESS_BYPASSING)
    assert (alone.client, alone.follows) == (801, None)
    assert alone.steps[0].commands == ("cuda-mps-exporter doctor",)
    assert f"export CUDA_MPS_PIPE_DIRECTORY={DAEMON}" in commands_of(alone)
    (dead,) = found_in(daemon_down(), NodeProblem.PROCESS_BYPASSING)
    assert dead.follows == DaemonProblem.DAEMON_DOWN.definition.label


@pytest.mark.parametrize(
    ("back_after", "ago", "problem"),
    [
        (60, 86399, NodeProblem.PROCESS_BYPASSING_AFTER_DEATH),
        (61, 86399, NodeProblem.PROCESS_BYPASSING),
        (60, 86400, NodeProblem.PROCESS_BYPASSING),
    ],
)
def test_bypassing_processes_are_more_urgent_for_a_day_after_a_death_that_did_not_page(
    back_after: float, ago: float, problem: NodeProblem
) -> None:
    present, lost_at = three_clients(), AT - 100
    process = replace(present.daemons[DAEMON].runtime.last_process, started=lost_at + back_after)
    daemon = with_fields(present.daemons[DAEMON], lifecycle__last_loss_at=lost_at, runtime__process=process)
    assert len(found_in(replace(present, daemons={DAEMON: daemon}), problem, lost_at + ago)) == 1


# -- limits ------------------------------------------------------------------------------------------------------------


def test_limits_that_differ_have_the_time_the_clients_and_the_commands() -> None:
    threads = "set_default_active_thread_percentage 50"
    wanted = Limits(active_thread_percentage=50.0, pinned_memory={0: 1 << 30})
    server_memory = f"set_device_pinned_mem_limit {SERVER} 0 1G"
    drifts = {threads: LimitDrift(since=AT - 44), server_memory: LimitDrift(since=AT - 49)}
    present = watched(drifted(), wanted_limits=wanted, enforcement=LimitEnforcement(drifts=drifts))
    (found,) = found_in(present, NodeProblem.LIMITS_DRIFTED, AT + 1, Policy(mode=Mode.ACT))
    assert (found.since, found.daemon, found.server) == (AT - 49, DAEMON, None)
    assert found.values["limits"].endswith(" for new servers, and 2 more")
    assert [("for new servers" in fact, f"on server {SERVER}" in fact) for fact in found.facts] == [
        (True, False),
        (True, False),
        (False, True),
    ]
    assert [fact.rpartition(", for ")[2] for fact in found.facts[1:]] == ["45 s", "50 s"]
    assert ", for" not in found.facts[0]
    assert (found.affected, pids(found.affected_names)) == ("3 clients", [600, 601, 602])
    assert found.outlook == "The watchdog sets it again."
    assert [each.split('"')[1].split()[0] for each in commands_of(found)] == [
        "set_default_device_pinned_mem_limit",
        "set_default_active_thread_percentage",
        "set_device_pinned_mem_limit",
    ]
    assert [step.ends for step in found.steps] == [0]


def test_only_a_watchdog_that_acts_sets_limits_again() -> None:
    (observed,) = found_in(drifted(), NodeProblem.LIMITS_DRIFTED, policy=Policy(mode=Mode.OBSERVE))
    assert observed.outlook.startswith("The watchdog will not set it again: it only observes")
    (unwatched,) = found_in(drifted(), NodeProblem.LIMITS_DRIFTED)
    assert (unwatched.outlook, unwatched.affected, unwatched.affected_names) == ("", "new clients", ())
    assert not found_in(changed(drifted(), state=None), NodeProblem.LIMITS_DRIFTED)
    for wanted in (None, Limits()):
        assert not found_in(watched(drifted(), wanted_limits=wanted), NodeProblem.LIMITS_DRIFTED)


@pytest.mark.parametrize(("devices", "more"), [(8, None), (9, 2)])
def test_a_step_sets_the_limits_of_all_gpus_or_says_how_many_are_left(devices: int, more: int | None) -> None:
    """Of the daemon's default, and of its server."""
    wanted = Limits(pinned_memory=dict.fromkeys(range(2, 2 + devices), 1 << 30))
    asked = {f"get_default_device_pinned_mem_limit {device}": AT for device in range(2, 2 + devices)}
    present = changed(watched(drifted(), wanted_limits=wanted), commands__asked_at=asked)
    (found,) = found_in(present, NodeProblem.LIMITS_DRIFTED)
    assert len(commands_of(found)) == MOST_GROUPED
    left = "" if more is None else f" Then `cuda-mps-exporter status` shows {more} more commands."
    assert found.steps[0].text == f"Set the limit again.{left}"


# -- daemons that cannot be reached, and MPS without a daemon ----------------------------------------------------------


@pytest.mark.parametrize(
    ("directory", "how", "wait", "start"),
    [
        (REMOVED, "was removed", "Wait until", "Start it again if it is needed."),
        (TAKEN, "is another daemon's", "Change no file there. Wait until", "Start it with a directory that only this"),
    ],
)
def test_a_lost_directory_has_the_steps_for_its_loss(
    directory: DirectoryReading, how: str, wait: str, start: str
) -> None:
    present = lost(directory)
    (found,) = found_in(present, DaemonProblem.DIRECTORY_LOST)
    since = present.daemons[DAEMON].lifecycle.state_since
    assert (found.values["how"], found.affected, found.since) == (how, "new clients", since)
    first, end = found.steps
    assert (first.text, first.commands) == (f"{wait} its clients have ended.", ())
    assert end.text.startswith(f"End the daemon. {start}")
    assert len(found.facts) == (directory is TAKEN)
    unknown = changed(present, connections__listed_at=None)
    ends = [found_in(each, DaemonProblem.DIRECTORY_LOST)[0].steps[-1].ends for each in (present, unknown)]
    assert ends == [1, None]
    (found,) = found_in(changed(present, runtime__process=None), DaemonProblem.DIRECTORY_LOST)
    assert [(step.text.startswith(start), step.commands, step.ends) for step in found.steps] == [(True, (), None)]


@pytest.mark.parametrize(("wait", "start"), [(10.0, Node()), (600.0, idle())], ids=["no daemon", "a daemon"])
def test_names_the_processes_that_use_mps_without_a_known_daemon(wait: float, start: Node) -> None:
    """A daemon that is known may take longer to list them."""
    seen = (look("discovery"), gpu_reading([900, 901], server=None, at=AT + 1), look("discovery", at=AT + 700))
    present = reduced(*seen, start=start).node
    problem = NodeProblem.MPS_WITHOUT_DAEMON
    assert not found_in(present, problem, AT + 1 + wait - 0.1)
    assert not found_in(reduced(*seen[:2], start=start).node, problem, AT + 1 + wait), "nothing was searched since"
    (found,) = found_in(present, problem, AT + 1 + wait)
    assert (found.values["gpu"], pids(found.facts)) == ("0", [900, 901])
