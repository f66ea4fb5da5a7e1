"""Findings of a node, and the exit code of `status`."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from exporter.demo.simulation import PlannedFailure, Simulation
from exporter.model.daemon import DaemonState
from exporter.model.identity import WorkloadProcess, WorkloadRole
from exporter.model.incident import RecoveryAction, Xids
from exporter.model.node import Node
from exporter.model.observation import GpuReading, LogFile, Observation, ProcessExit
from exporter.model.reason import Reason, ReasonCode
from exporter.model.usage import Share
from exporter.model.watchdog import Condition, Diagnosis
from exporter.report.client_findings import MOST_LISTED
from exporter.report.document import FindingStatus
from exporter.report.document_parts import Severity
from exporter.report.finding import Finding
from exporter.report.node_findings import findings
from exporter.report.node_status import document_of
from exporter.report.problems import DaemonProblem, NodeProblem
from exporter.report.status_text import affected_shown, headline
from exporter.report.text import text_of
from exporter.usage.lasting import FULL_RATIO, LARGE_RATIO
from exporter.watchdog.context import DaemonPolicy, Policy
from tests.builders import (
    AT,
    CLIENT,
    CONTROL,
    DAEMON,
    GPU,
    GPU_BYTES,
    OTHER_GPU,
    PAUSED,
    SERVER,
    at_work,
    backing_off,
    blocked_recovery,
    circuit_open,
    control_log,
    daemon_down,
    daemon_process,
    drifted,
    exited,
    failure,
    faulted,
    flight,
    full,
    gpu_lost,
    gpu_reading,
    idle,
    limited,
    look,
    looks,
    no_daemon,
    no_nvml,
    node,
    process,
    quarantined,
    reduced,
    refusal,
    reply,
    silence,
    split,
    standing,
    suspended,
    three_clients,
    watched,
)
from tests.clocks import HandClock
from tests.metrics.test_families import samples, value
from tests.simulated import minutes
from tests.status import commands_of, status_table

BYPASSING = "CUDA processes bypass MPS on GPU 1: PID 801 (jupyter-lab of carol)"
DOWN = f"MPS daemon {DAEMON} has been down for 10 s, 3 clients ended with it"
LOG = f"Exporter cannot read a log of MPS daemon {DAEMON}: server.log cannot be read: Permission denied"
QUARANTINED = (
    f"MPS daemon {DAEMON} has been quarantined for 0 ms: Xid 79 (GPU fell off the bus): GPU 0 (GPU-1efa3f60) needs a "
    "reboot of the machine"
)
NO_NVML = (
    "CUDA MPS exporter has been unable for 0 ms to collect nvml: NVML: NVML is not there. "
    "Check the driver with nvidia-smi"
)
GPU_MISSING = "GPU 1 has been lost for 0 ms: NVML works, and no longer lists the GPU"
DRIFTED = (
    f"Limits of MPS daemon {DAEMON} differ from the configured ones:"
    " active thread percentage is 25 %, not 50 % for new servers"
)
CRITICAL, WARNING = Severity.CRITICAL, Severity.WARNING


def found_in(present: Node, policy: Policy | None = None) -> tuple[Finding, ...]:
    return findings(present, present.at, policy)


def waiting() -> Node:
    """Return a node with a client that waits for another user's client."""
    lines = control_log(
        "NEW CLIENT 601 from user 1000: Server is not ready, push client to pending list",
        f"Server {SERVER} has 2 active worker threads. Server will not shutdown.",
    )
    return reduced(*at_work(600), *lines).node


def unasked() -> Node:
    """Return a daemon that cannot be queried, so that its limits are unknown."""
    present = drifted()
    return replace(daemon_down(), watches=present.watches)


def test_lists_the_most_urgent_finding_first(subtests: pytest.Subtests) -> None:
    for scene, matter in [
        (idle, []),
        (Node, [("The exporter has not collected anything yet", Severity.UNKNOWN)]),
        (node, [("The exporter has not collected anything yet", Severity.UNKNOWN)]),
        (three_clients, [(BYPASSING, WARNING), (LOG, WARNING)]),
        (limited, [(BYPASSING, WARNING), (LOG, WARNING)]),
        (
            waiting,
            [
                (
                    f"Clients of MPS daemon {DAEMON} wait for another user's clients to exit: 1 client",
                    WARNING,
                )
            ],
        ),
        (full, [(f"MPS server 513 of {DAEMON} has no free client slot (48 of 48)", WARNING)]),
        (
            daemon_down,
            [(DOWN, CRITICAL), (BYPASSING, WARNING)],
        ),
        (
            unasked,
            [(DOWN, CRITICAL), (BYPASSING, WARNING)],
        ),
        (
            backing_off,
            [
                (
                    f"{DOWN}, restarted 1 time, waiting to restart",
                    CRITICAL,
                ),
                (BYPASSING, WARNING),
            ],
        ),
        (
            circuit_open,
            [
                (
                    f"{DOWN}, restarted 4 times, circuit open",
                    CRITICAL,
                ),
                (BYPASSING, WARNING),
            ],
        ),
        (quarantined, [(QUARANTINED, CRITICAL)]),
        (
            suspended,
            [
                (f"A server of MPS daemon {DAEMON} has been stopped by a signal or a debugger for 2.0 s", CRITICAL),
                (BYPASSING, WARNING),
                (LOG, WARNING),
            ],
        ),
        (
            drifted,
            [
                (BYPASSING, WARNING),
                (DRIFTED, WARNING),
                (LOG, WARNING),
            ],
        ),
        (
            no_nvml,
            [
                (
                    NO_NVML,
                    WARNING,
                ),
                (LOG, WARNING),
            ],
        ),
        (
            gpu_lost,
            [
                (
                    GPU_MISSING,
                    CRITICAL,
                ),
                (LOG, WARNING),
            ],
        ),
    ]:
        with subtests.test(scene=scene, matter=matter):
            assert [(each.text, each.severity) for each in found_in(scene())] == matter


def test_reports_a_fault_once() -> None:
    known = Diagnosis(condition=Condition.FAULT, since=AT)
    present = replace(faulted(), watches=watched(idle(), diagnosis=known).watches)
    grave = [each.text for each in found_in(present) if each.severity is CRITICAL]
    assert [each.partition(" has been")[0] for each in grave] == [f"MPS server {SERVER} of {DAEMON}"]


def test_lists_a_fault_with_a_command_first() -> None:
    assert [commands_of(each) for each in found_in(blocked_recovery())[:2]] == [("kill -KILL 601",), ()]


def test_a_gpu_that_needs_a_reset_is_critical() -> None:
    demanding = replace(idle(), xids=Xids(recovery_actions={GPU: RecoveryAction(at=AT, action="RESET_GPU")}))

    (found,) = found_in(demanding)
    assert (found.severity, found.text) == (CRITICAL, "GPU 0 (GPU-1efa3f60) has needed a reset for 0 ms")


def test_a_lost_gpu_is_critical_and_fails() -> None:
    lost = Reason(ReasonCode.GPU_LOST, detail="GPU is lost")
    no_events = replace(look("nvml_events", at=AT + 1), problem=Reason(ReasonCode.NOT_SUPPORTED, subject="Xid events"))

    (found,) = found_in(reduced(GpuReading(at=AT + 1, gpu=GPU, problem=lost), no_events, start=idle()).node)

    assert (found.problem, found.severity) == (NodeProblem.GPU_LOST, CRITICAL)
    assert found.text.startswith("GPU 0 is lost: NVML: GPU is lost")


def test_a_gpu_that_was_lost_before_the_start_is_critical() -> None:
    lost = Reason(ReasonCode.GPU_LOST, subject="1", detail="GPU is lost")

    first, known = gpu_reading(at=AT + 1), reduced(look(problem=lost, at=AT + 2), start=idle()).node

    (found,) = found_in(reduced(first, look(problem=lost, at=AT + 1), start=idle()).node)
    (of_known,) = found_in(known)

    assert (found.problem, found.text.partition(":")[0]) == (NodeProblem.GPU_LOST, "GPU 1 is lost")
    assert (of_known.problem, of_known.text.partition(":")[0]) == (NodeProblem.GPU_LOST, "GPU 0 is lost")


def test_a_paused_exporter_has_one_finding_for_the_gpus() -> None:
    present = reduced(look(problem=PAUSED, at=AT + 1), start=idle()).node
    (found,) = found_in(
        replace(present, gpus=reduced(GpuReading(at=AT + 1, gpu=GPU, problem=failure("lost"))).node.gpus)
    )
    assert commands_of(found) == ("cuda-mps-exporter resume",)


def test_a_missing_driver_is_the_first_critical_finding_of_a_node_that_expects_mps() -> None:
    """If a server runs, there is a driver. After an upgrade of the driver, no other server can start."""
    dead, missing = daemon_down(), look(problem=failure("no", ReasonCode.LIBRARY_MISSING), at=AT + 11)
    probes = look(source="libcuda_probes", problem=failure("no libcuda"), at=AT + 11)
    codes = [(found.problem, found.severity) for found in found_in(reduced(missing, probes, start=dead).node)]
    assert codes[:2] == [(NodeProblem.NVML_UNUSABLE, CRITICAL), (DaemonProblem.DAEMON_DOWN, CRITICAL)]
    assert (NodeProblem.EXPORTER_CANNOT_COLLECT, WARNING) in codes

    served = found_in(reduced(missing, probes, start=idle()).node)
    assert {found.problem for found in served} == {NodeProblem.EXPORTER_CANNOT_COLLECT}
    assert ["nvml" in found.text for found in served] == [True, False]
    mismatch = look(problem=failure("no", ReasonCode.DRIVER_MISMATCH), at=AT + 11)
    assert found_in(reduced(mismatch, start=idle()).node)[0].problem is NodeProblem.NVML_UNUSABLE
    unexpected = replace(dead.daemons[DAEMON], declared=replace(dead.daemons[DAEMON].declared, expected=False))
    nowhere = reduced(missing, start=replace(dead, daemons={DAEMON: unexpected})).node
    assert NodeProblem.NVML_UNUSABLE not in {found.problem for found in found_in(nowhere)}


def test_a_daemon_that_is_down_has_the_compute_mode_of_its_gpus() -> None:
    """It decides whether new processes bypass MPS or fail."""
    exclusive = replace(gpu_reading(at=AT + 11), compute_mode="exclusive_process")
    (found, *_) = found_in(reduced(exclusive, start=daemon_down()).node)
    assert found.problem is DaemonProblem.DAEMON_DOWN
    assert "compute mode of its GPUs: EXCLUSIVE_PROCESS" in found.facts
    (unknown, *_) = found_in(daemon_down())
    assert not any("compute mode" in fact for fact in unknown.facts)


def test_doctor_command_has_the_attribution_option() -> None:
    """The service has the option from its unit's environment, which a shell lacks."""
    (found,) = found_in(
        reduced(look(source="libcuda_probes", problem=failure("the kernel refuses"), at=AT + 1), start=idle()).node
    )
    assert commands_of(found) == ("cuda-mps-exporter doctor --attribution=bpf",)


def test_the_end_of_an_unexpected_daemon_is_not_critical() -> None:
    gone = replace(
        idle().daemons[DAEMON],
        declared=replace(idle().daemons[DAEMON].declared, expected=False),
        state=DaemonState.DOWN,
    )
    (found,) = found_in(replace(idle(), daemons={DAEMON: gone}))

    assert (found.severity, found.remedy) == (WARNING, DaemonProblem.DAEMON_ENDED.definition.remedy)


JOB = "0::/pbs_jobs.service/jobs/4711.pbs01\n"


def daemon_of_a_job(*after: Observation, expected: bool = False) -> Node:
    """A daemon that a job started, its script with PID 700, and a client."""
    peers = (WorkloadProcess(pid=700, start_ticks=70000, role=WorkloadRole.TASK),)
    started = (process(pid, cgroup=JOB) for pid in (700, CLIENT))
    seen = (
        replace(daemon_process(), cgroup=JOB, peers=peers),
        *started,
        *at_work(CLIENT),
        gpu_reading([CLIENT]),
        *after,
    )
    return reduced(*seen, start=node(expected=expected)).node


QUIT: tuple[Observation, ...] = (*control_log("Cmd:quit", at=AT + 50), exited(CONTROL, at=AT + 51))
KILLED = tuple(replace(exited(pid, at=AT + 51), wait_status=9) for pid in (CONTROL, 700, CLIENT))


@pytest.mark.parametrize("ended", [QUIT, KILLED, KILLED[::-1]], ids=("quit", "killed with its job", "job first"))
def test_the_end_of_a_jobs_own_daemon_is_no_problem(ended: tuple[Observation, ...]) -> None:
    after = daemon_of_a_job(*ended, look("process", at=AT + 51.4), look("process", at=AT + 55))
    document = document_of(after)
    assert (document.severity, document.findings) == (Severity.WELL, ())
    assert not document.daemons
    assert after.daemons[DAEMON].state is DaemonState.STOPPED
    assert value(after, "cuda_mps_daemon_state", state="stopped") == 1
    assert value(after, "cuda_mps_daemon_up") == 0
    assert not samples(after, "cuda_mps_daemon_last_loss_timestamp_seconds")
    assert sum(each.value for each in samples(after, "cuda_mps_daemon_losses_total")) == 0


def test_the_end_of_a_jobs_own_daemon_is_no_problem_while_it_is_not_explained() -> None:
    document = document_of(daemon_of_a_job(KILLED[0], look("process", at=AT + 51.1)))
    assert (document.severity, len(document.daemons)) == (Severity.WELL, 1)


def test_a_daemon_of_a_job_that_died_alone_is_a_problem() -> None:
    failed = replace(exited(CLIENT, at=AT + 51.1), wait_status=1 << 8)
    after = daemon_of_a_job(KILLED[0], failed, look("process", at=AT + 55))
    assert document_of(after).severity is WARNING
    assert value(after, "cuda_mps_daemon_last_loss_timestamp_seconds") == AT + 51


def test_an_expected_daemon_that_was_stopped_is_a_problem() -> None:
    document = document_of(daemon_of_a_job(*QUIT, look("process", at=AT + 55), expected=True))
    assert [each.code for each in document.findings] == [DaemonProblem.DAEMON_STOPPED.code]


def test_no_process_bypasses_a_daemon_of_a_job_after_its_quit() -> None:
    """Nothing else declares that the GPU is shared by MPS."""
    readings = (gpu_reading(beside=[800], server=None, at=AT + 60 + 30 * step) for step in range(4))
    beside: tuple[Observation, ...] = (process(800), *readings)
    assert not document_of(daemon_of_a_job(*QUIT, look("process", at=AT + 55), *beside)).findings


def test_a_wrong_pid_file_is_reported_with_the_pid() -> None:
    lost = replace(
        idle().daemons[DAEMON], state=None, lifecycle=replace(idle().daemons[DAEMON].lifecycle, not_found_at=AT)
    )
    (found,) = found_in(replace(reduced(look(), start=idle()).node, daemons={DAEMON: lost}))

    assert found.text == f"The PID file of MPS daemon {DAEMON} does not contain the daemon's PID ({CONTROL})"
    assert found.remedy == "Write the PID of the daemon into the PID file."


def test_a_session_held_open_has_no_command() -> None:
    held = reduced(refusal(at=AT + 1), refusal(at=AT + 10), start=idle()).node
    assert held.daemons[DAEMON].state is DaemonState.HELD

    assert found_in(held)[0].remedy == DaemonProblem.DAEMON_HELD.definition.remedy


WHERE = f"CUDA_MPS_PIPE_DIRECTORY={DAEMON} CUDA_MPS_LOG_DIRECTORY={DAEMON}/log"


def test_start_command_is_never_truncated(subtests: pytest.Subtests) -> None:
    for command, shown in [
        (("start-mps", "--now"), (f"{WHERE} start-mps --now",)),
        (("start", "a b"), (f"{WHERE} start 'a b'",)),
        (("x" * 5000,), ()),
        (("a\nb",), ()),
        ((), (f"{WHERE} nvidia-cuda-mps-control -d",)),
    ]:
        with subtests.test(command=command, shown=shown):
            policy = Policy(daemon_policies={DAEMON: DaemonPolicy(command=command)})

            assert found_in(daemon_down(), policy)[0].steps[0].commands == shown


def memory_of(used: int, *parts: int) -> Node:
    """Return a GPU of which this percentage is used, and these percentages by one user each."""
    pids = range(600, 600 + len(parts))
    held = {pid: GPU_BYTES // 100 * part >> 20 for pid, part in zip(pids, parts, strict=True)}
    reading = replace(gpu_reading(held), memory_used_bytes=GPU_BYTES // 100 * used)
    return reduced(*at_work(*pids), *(process(pid, user=f"user{pid}") for pid in pids), reading, *looks()).node


def test_one_of_several_workloads_that_fills_a_gpu_is_a_problem() -> None:
    (finding,) = found_in(memory_of(96, 10, 80))
    assert (finding.problem, finding.severity) == (NodeProblem.WORKLOAD_FILLS_MEMORY, WARNING)
    assert finding.text == "Workload user user601 fills the memory of GPU 0: it has 80 % of it, and 5775 MiB are free"
    assert finding.text in text_of(headline(document_of(memory_of(96, 10, 80))))


@pytest.mark.parametrize(
    "present",
    [memory_of(95, 10, 80), memory_of(96, 50, 40), memory_of(99, 98)],
    ids=["free memory", "no large workload", "alone"],
)
def test_memory_without_pressure_is_no_problem(present: Node) -> None:
    assert found_in(present) == ()


def test_the_alert_has_the_limits_of_the_finding() -> None:
    rules = yaml.safe_load((Path(__file__).parents[2] / "alerts" / "cuda-mps.rules.yml").read_text())
    (expression,) = [
        rule["expr"]
        for group in rules["groups"]
        for rule in group["rules"]
        if rule.get("alert") == NodeProblem.WORKLOAD_FILLS_MEMORY.definition.alert
    ]
    assert re.findall(r"> ([\d.]+)", expression) == [str(LARGE_RATIO), str(FULL_RATIO), "1"]


def test_says_what_is_lost_if_a_daemon_logs_to_a_pipe_and_how_to_repair_it() -> None:
    process = replace(daemon_process(), foreground=True, stdout_in_file=False)
    node = reduced(*at_work(CLIENT), process).node
    (finding,) = [each for each in findings(node, node.at) if each.problem is NodeProblem.LOG_NOT_FOLLOWED]

    shown = status_table(node)
    assert f"warning: {finding.text}" in shown
    assert "neither stdout.log nor a journal" in finding.text
    assert "misses short faults" in shown
    assert "stdout.log in its log directory" in finding.remedy


def test_the_missing_server_log_of_a_daemon_that_never_had_a_client_is_no_problem() -> None:
    absent = {
        file: LogFile(at=AT, daemon=DAEMON, file=file, problem=Reason(ReasonCode.NOT_FOUND, subject=file))
        for file in ("control.log", "server.log", "uid_0/server.log")
    }
    for file, expected in (("server.log", 0), ("uid_0/server.log", 0), ("control.log", 1)):
        node = reduced(absent[file], start=idle()).node
        found = [each.problem for each in findings(node, node.at)]
        assert found.count(NodeProblem.LOG_NOT_FOLLOWED) == expected, file


def test_lists_the_bypassing_processes_with_their_gpus_and_no_text_that_forges_a_line() -> None:
    present = reduced(process(801, user="carol", command="a\nb\x1b[31m" + "x" * 500), start=three_clients()).node
    (found,) = (each for each in document_of(present).findings if each.code == "process_bypassing")
    (fact,) = found.affected_names
    assert fact.startswith("PID 801 (a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}[31mxxx")
    assert fact.endswith("… of carol) on GPU 1 (1024 MiB), for 2.0 s")
    assert len(fact) < 100


def test_shows_no_directory_to_a_bypassing_process_that_uses_gpus_of_several_daemons() -> None:
    """A client sees only the GPUs of its daemon, so such a process would lose a GPU."""
    daemons = {"/run/mps/0": GPU, "/run/mps/1": OTHER_GPU}
    known = [
        observation
        for number, (name, gpu) in enumerate(daemons.items())
        for observation in (
            *at_work(server=900 + number, daemon=name),
            reply("device_query --csv", f"0,00:00.0,{gpu},NVIDIA H200\n", daemon=name),
        )
    ]
    on = (801, 802), (801, 803)
    readings = [
        gpu_reading(beside=on[number], server=900 + number, gpu=gpu, index=number, at=at)
        for at in (AT, AT + 2)
        for number, gpu in enumerate(daemons.values())
    ]
    (found,) = found_in(reduced(*known, *readings, *looks(at=AT + 2), start=node(*daemons)).node)
    _, first, second, both = found.steps
    for step, pid, path in ((first, 802, "/run/mps/0"), (second, 803, "/run/mps/1")):
        assert (step.text.endswith(f"These are PID {pid}."), step.commands[0].endswith(f"={path}")) == (True, True)
    assert ("PID 801" in both.text, both.commands) == (True, ())


def test_restarts_a_bypassing_process_through_its_job_and_counts_the_clients_that_this_ends() -> None:
    job = "0::/system.slice/slurmstepd.scope/job_42/step_0/user/task_0\n"
    present = reduced(process(801, cgroup=job), process(CLIENT, cgroup=job), start=three_clients()).node
    (found,) = (each for each in document_of(present).findings if each.code == "process_bypassing")
    assert (found.steps[-1].commands, found.steps[-1].ends) == (("scontrol requeue 42",), 1)


def test_names_the_clients_of_a_dead_daemon_after_their_exit() -> None:
    gone = [ProcessExit(at=AT + 6, pid=pid, start_ticks=pid * 100) for pid in (600, 601, 602)]
    ended = reduced(exited(CONTROL, at=AT + 5), *gone, no_daemon(at=AT + 15), start=three_clients()).node
    first, *_ = document_of(ended).findings
    assert first.affected_names == (
        "PID 600 (train.py of alice)",
        "PID 601 (vllm of bob)",
        "PID 602 (eval.py of alice)",
    )


def test_shows_some_bypassing_processes_and_counts_the_others() -> None:
    present = three_clients()
    known = dict.fromkeys(range(801, 821), next(iter(present.gpus[OTHER_GPU].bypassing_processes.values())))
    many = {**present.gpus, OTHER_GPU: replace(present.gpus[OTHER_GPU], bypassing_processes=known)}
    shown = status_table(replace(present, gpus=many))
    assert "- PIDs 802, 803, 804, 805, 806, 807, 808, 809 and 11 more on GPU 1" in shown


def test_lists_alike_processes_together_but_not_those_without_a_pid() -> None:
    (first, *_) = document_of(three_clients()).findings
    names = ("PID 7 (a of bob)", "an unknown PID (a of bob)", "PID 8 (a of bob)", "an unknown PID")
    assert affected_shown(replace(first, affected_names=names)) == [
        "PIDs 7 and 8 (a of bob)",
        "an unknown PID (a of bob)",
        "an unknown PID",
    ]


def test_a_full_server_has_its_idle_clients_with_commands() -> None:
    unknown = (
        "it is unknown whether 48 clients are idle, because their SM time in the last minute is unknown or uncertain"
    )
    (found,) = found_in(full())
    assert found.since is None, "the exporter found the server full"
    assert found.facts[:2] == (unknown, "PID 1000 (train.py of alice) holds 1540 MiB; it started 1 min 0 s ago")
    assert (len(found.facts), found.facts[-1]) == (1 + MOST_LISTED + 1, f"the table lists {48 - MOST_LISTED} more")
    (simulated,) = (each for each in scene("server-full") if each.code == "client_slots_full")
    assert simulated.since == 3600 + 10
    idle_ones = [fact for fact in simulated.facts if " is idle and holds " in fact]
    assert len(idle_ones) > 4
    pids = [fact.split()[1] for fact in idle_ones]
    (step,) = simulated.steps
    assert step.commands == tuple(f"kill -TERM {pid}" for pid in pids[:4])
    assert step.ends == 4


def test_a_server_is_full_if_one_of_its_gpus_is() -> None:
    first, second = range(1000, 1024), range(1100, 1124)
    spread = gpu_reading(first), gpu_reading(second, gpu=OTHER_GPU, index=1)
    assert not found_in(reduced(*at_work(*first, *second), *spread, *looks()).node)
    on_one = gpu_reading(()), gpu_reading(range(1000, 1048), gpu=OTHER_GPU, index=1)
    (found,) = found_in(reduced(*at_work(*range(1000, 1048)), *on_one, *looks()).node)
    assert "(48 of 48 on GPU 1)" in found.text


def idle_facts(present: Node, use: Share, *, on_other: Share | None = None) -> tuple[str, ...]:
    """Return what is known of the idle clients of a full server. All but the first one are busy."""
    present = split(present, {pid: flight(0.3, 0.001) for pid in range(1001, 1048)} | {1000: use})
    if on_other is not None:
        present = split(present, {1000: on_other}, gpu=OTHER_GPU)
    (finding, *_) = found_in(present)
    idle = tuple(fact.partition(";")[0] for fact in finding.facts if " is idle and holds " in fact)
    assert len(finding.steps[0].commands) == len(idle)
    return idle or finding.facts[:1]


IDLE, BUSY = flight(0.0, 0.0), flight(0.3, 0.001)
IS_IDLE = "PID 1000 (train.py of alice) is idle and holds {} MiB"
MAY_BE_IDLE = "it is unknown whether 1 client is idle, because their SM time in the last minute is unknown or uncertain"


def test_no_command_ends_a_client_that_may_not_be_idle() -> None:
    """A client that has just begun has used nothing yet, and the use of another one is uncertain."""
    young, present = replace(full(), at=AT + 10), replace(full(), at=AT + 60)
    assert idle_facts(present, BUSY) == ("no client is idle",)
    assert idle_facts(present, IDLE) == (IS_IDLE.format(1540),)
    assert idle_facts(young, IDLE) == (MAY_BE_IDLE,)
    assert idle_facts(present, flight(0.005, 0.01)) == (MAY_BE_IDLE,)
    assert idle_facts(present, flight(0.05, 0.04)) == (MAY_BE_IDLE,)


def test_a_client_that_works_on_another_gpu_is_not_idle() -> None:
    other = gpu_reading({1000: 2000}, gpu=OTHER_GPU, index=1, at=AT + 60)
    present = reduced(other, start=replace(full(), at=AT + 60)).node
    assert idle_facts(present, IDLE, on_other=IDLE) == (IS_IDLE.format(3540),)
    assert idle_facts(present, IDLE, on_other=BUSY) == ("no client is idle",)
    assert idle_facts(present, IDLE) == (MAY_BE_IDLE,)


def scene(failure: str) -> tuple[FindingStatus, ...]:
    """Return the findings of the demo, two minutes after a failure."""
    clock = HandClock(3600.0)
    simulation = Simulation(1, clock, calm=True, past=300.0, probes=True)
    for minute, reduction in enumerate(minutes(clock, simulation)):
        if minute == 0:
            simulation.plan([PlannedFailure(after=10, failure=failure, seconds=300)])
        if minute == 2:
            return document_of(reduction.node, Policy()).findings
    raise AssertionError


def test_names_what_a_hung_daemon_needs() -> None:
    """A stopped process continues without a restart."""
    hung = reduced(daemon_process(), *at_work(CLIENT), silence(at=AT + 5), silence(at=AT + 10)).node
    for state, fact, first in [
        (None, f"it is unknown whether PID {CONTROL} is stopped", f"kill -CONT {CONTROL}"),
        ("S", f"PID {CONTROL} is not stopped (state S)", f"kill -KILL {CONTROL}"),
        ("T", f"PID {CONTROL} is stopped (state T)", f"kill -CONT {CONTROL}"),
    ]:
        seen = () if state is None else (standing(state, at=AT + 11),)
        (found,) = (each for each in found_in(reduced(*seen, start=hung).node) if each.daemon == DAEMON)
        assert (found.problem, found.facts[0]) == (DaemonProblem.DAEMON_UNRESPONSIVE, fact)
        assert commands_of(found)[0].startswith(first)
        assert next(step.ends for step in found.steps if "estart the daemon" in step.text) == 1


def test_a_problem_of_the_probes_follows_from_nvml() -> None:
    codes = [each.follows for each in scene("nvml-fails") if each.code == "exporter_cannot_collect"]
    assert codes == [None, "NVML fails"]


def test_a_dead_daemon_has_the_clients_that_ended_and_its_logs() -> None:
    (down, *_) = scene("daemon-keeps-dying")
    assert "ended with it" in down.text
    assert any(command.startswith("tail -n 30 ") for step in down.steps for command in step.commands)
    (crash_loop,) = (each for each in scene("servers-crash") if each.code == "server_crash_loop")
    assert "/server.log " in crash_loop.steps[0].commands[0]


@pytest.mark.parametrize(
    ("cgroup", "title", "owner"),
    [
        ("system.slice/slurmstepd.scope/job_42/step_0/user/task_0", None, "alice, job 42"),
        ("system.slice/slurmstepd.scope/sEKNKTV3WPV500/step_0/user/task_0", "slurmstepd: [43.0]", "alice, job 43"),
        ("system.slice/slurmstepd.scope/sEKNKTV3WPV500/step_0/user/task_0", "", "alice, job sEKNKTV3WPV500"),
        ("user.slice/user-1001.slice/session-2.scope", None, "alice"),
    ],
)
def test_a_finding_names_the_job_and_user_of_a_daemon_that_is_not_expected(
    cgroup: str, title: str | None, owner: str
) -> None:
    """The name of its directory may have only the number of a mount namespace."""
    daemon = replace(daemon_process(), user="alice", cgroup=f"0::/{cgroup}\n", job_source=title)
    present = reduced(daemon, start=full()).node
    for expected in (False, True):
        known = present.daemons[DAEMON]
        known = replace(known, declared=replace(known.declared, expected=expected))
        document = document_of(replace(present, daemons={DAEMON: known}))
        facts = [fact for finding in document.findings for fact in finding.facts]
        assert (f"the daemon belongs to {owner}" in facts) is not expected
        assert document.daemons[0].owner == ("" if expected else owner)
