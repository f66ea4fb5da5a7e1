"""The commands that restart the work of processes: only where they end that work alone, and with all that they end."""

import re
from collections.abc import Iterable
from dataclasses import replace

import pytest

from exporter.doctor.daemons import reported_by_status
from exporter.model.node import Node
from exporter.model.observation import DaemonFound, PodFound, ProcessReading
from exporter.model.reason import Reason, ReasonCode
from exporter.model.values import plain
from exporter.page.page import Page
from exporter.report.document import ManualStep
from exporter.report.finding import Finding, finding_statuses
from exporter.report.problems import DaemonProblem
from exporter.report.remedy import clients_beside, commands_to_restart, commands_to_start, step_to_rerun
from exporter.state.processes import workload_of
from exporter.watchdog.context import DaemonPolicy, Policy
from tests.builders import (
    AT,
    CONTROL,
    DAEMON,
    GPU_BYTES,
    at_work,
    daemon_process,
    gpu_reading,
    look,
    looks,
    process,
    reduced,
    with_fields,
)
from tests.doctor.healthy import healthy
from tests.page.inputs import status_input
from tests.parse.test_shared_units import BATCH_SYSTEMS, OTHERS
from tests.status import as_json, document_of, status_table

BESIDE = 801
"""A process that bypasses MPS, and fills the GPU."""

ALICE, BOB = 1001, 1002
PAGE = Page({})
RERUN = re.compile(
    r"systemctl (?:re)?st(?:art|op) (?!cuda-mps-exporter)|kubectl delete|scontrol requeue|qrerun|qmod|vacate"
)


def scene(*processes: ProcessReading, beside: Iterable[int] = (BESIDE,)) -> Node:
    """Return a node where processes below 800 are clients, and these fill the GPU; the others bypass MPS."""
    clients = [each.pid for each in processes if each.pid < 800]
    held = dict.fromkeys(clients, 1024) | ({clients[0]: 100_000} if clients else {})
    readings = (
        replace(gpu_reading(held, beside=beside, at=at), memory_used_bytes=GPU_BYTES // 100 * 98) for at in (AT, AT + 2)
    )
    return reduced(*at_work(*clients), daemon_process(), *processes, *readings, *looks(at=AT + 2)).node


def in_unit(pid: int, unit: str, *users: int, uid: int = ALICE, below: str = "") -> ProcessReading:
    """Return a process of a unit with processes of these users, or of unknown ones."""
    reading = process(pid, uid=uid, user=f"user{uid}", cgroup=f"0::/system.slice/{unit}{below}\n")
    return replace(reading, unit_users=tuple(sorted(users)) or None)


def shown(node: Node) -> str:
    """Return all that status, its JSON, the page and doctor show."""
    findings = reported_by_status.find(healthy(node=node))
    parts = (
        status_table(node),
        str(as_json(document_of(node))),
        PAGE.node(status_input(node)).decode(),
        str(list(map(plain, findings))),
    )
    return "\n".join(parts)


def rerun(node: Node, *pids: int) -> ManualStep:
    return step_to_rerun(node, pids or (BESIDE,), "Restart them.")


def test_no_command_names_a_unit_that_runs_the_work_of_many(subtests: pytest.Subtests) -> None:
    for unit in (BATCH_SYSTEMS + OTHERS).split():
        with subtests.test(unit=unit):
            for users in ((ALICE,), (0, ALICE), ()):
                node = scene(in_unit(600, unit, *users), in_unit(BESIDE, unit, *users))
                assert rerun(node).commands == rerun(node, 600).commands == ()
            text = shown(node)
            assert not RERUN.search(text)
            assert f", {unit})" not in text
            assert f"unit {unit}" not in text


@pytest.mark.parametrize("users", [(ALICE, BOB), (0, ALICE), (0, ALICE, BOB)])
def test_no_command_names_a_unit_with_processes_of_another_user(users: tuple[int, ...]) -> None:
    node = scene(in_unit(600, "sitejobs.service", *users, uid=BOB), in_unit(BESIDE, "sitejobs.service", *users))
    assert rerun(node).commands == ()
    assert not RERUN.search(shown(node))
    assert {workload.kind for pid in (600, BESIDE) if (workload := workload_of(node.processes[pid]))} == {"user"}


def test_no_command_names_a_unit_of_which_the_users_are_unknown() -> None:
    """Recordings of earlier versions do not have them. The workload is the unit, as there."""
    node = scene(process(600), in_unit(BESIDE, "vllm.service"))
    assert rerun(node).commands == ()
    assert not RERUN.search(shown(node))
    workload = workload_of(node.processes[BESIDE])
    assert workload is not None
    assert workload.name == "vllm.service"


def test_no_command_names_a_unit_while_processes_cannot_be_read() -> None:
    node = scene(process(600), in_unit(BESIDE, "vllm.service", ALICE))
    assert rerun(node).commands == ("systemctl restart vllm.service",)
    problem = Reason(ReasonCode.STILL_RUNNING, seconds=20.0)
    assert rerun(reduced(look("process", problem=problem, at=AT + 3), start=node).node).commands == ()


def test_a_unit_of_one_service_is_restarted_and_all_that_ends_is_counted() -> None:
    unit = "vllm.service"
    own = [in_unit(pid, unit, ALICE, below="/worker" * (pid % 2)) for pid in (600, 601, BESIDE, 802)]
    node = scene(*own, process(602), beside=(BESIDE, 802))
    step = rerun(node)
    assert (step.commands, step.ends) == (("systemctl restart vllm.service",), 2)
    assert step.text == "Restart them. All of their processes end, 2 of them on GPUs without MPS."
    assert rerun(node, 600) == rerun(node, 600, 601, BESIDE, 802) == step
    text = shown(node)
    assert "systemctl restart vllm.service" in text
    assert "This ends 2 clients." in text


def test_the_clients_of_another_daemon_in_the_unit_are_counted_too() -> None:
    node = scene(in_unit(BESIDE, "vllm.service", ALICE), process(600))
    daemon = node.daemons[DAEMON]
    clients = {700: replace(daemon.clients[600], pid=700)}
    second = replace(daemon, name="/run/second", pipe_directory="/run/second", clients=clients)
    processes = {**node.processes, 700: in_unit(700, "vllm.service", ALICE)}
    node = replace(node, daemons={**node.daemons, "/run/second": second}, processes=processes)
    assert rerun(node).ends == 1


def test_a_unit_with_a_daemon_is_not_restarted_if_its_clients_are_of_others() -> None:
    """Those in the unit belong to one user, but its daemon serves another unit too."""
    node = scene(
        in_unit(600, "app.service", ALICE), in_unit(601, "other.service", ALICE), in_unit(BESIDE, "app.service", ALICE)
    )
    assert rerun(node).commands == ("systemctl restart app.service",)
    runs = replace(daemon_process(), cgroup="0::/system.slice/app.service\n")
    assert rerun(reduced(runs, start=node).node).commands == ()


def test_the_number_is_unknown_if_a_client_may_be_anywhere() -> None:
    node = scene(in_unit(BESIDE, "vllm.service", ALICE), process(600))
    node = replace(node, processes={BESIDE: node.processes[BESIDE]})
    assert (rerun(node).commands, rerun(node).ends) == (("systemctl restart vllm.service",), None)


PODS = "/kubepods.slice/kubepods-pod6f9a2c1e_1b5d_4c57_9b0e_3d0f5a7c2b11.slice"
POD = PodFound(at=AT, uid="6f9a2c1e-1b5d-4c57-9b0e-3d0f5a7c2b11", name="work-0", namespace="team")


def in_pod(pid: int, below: str = "", uid: int = ALICE) -> ProcessReading:
    return process(pid, uid=uid, user=f"user{uid}", cgroup=f"0::{PODS}/cri-containerd-{'a' * 64}.scope{below}\n")


def test_a_pod_is_deleted_with_all_its_clients_counted() -> None:
    node = reduced(POD, start=scene(in_pod(600), in_pod(601), process(602), in_pod(BESIDE))).node
    assert (rerun(node).commands, rerun(node).ends) == (("kubectl delete pod --namespace team work-0",), 2)


@pytest.mark.parametrize("other", [in_pod(600, uid=BOB), in_pod(BESIDE, "/system.slice/slurmstepd.scope/job_7/step_0")])
def test_a_pod_with_work_of_others_is_not_deleted(other: ProcessReading) -> None:
    """A pod may be a node of a batch system."""
    node = reduced(POD, start=scene(in_pod(600), in_pod(BESIDE))).node
    assert rerun(node).commands == ("kubectl delete pod --namespace team work-0",)
    assert rerun(reduced(other, start=node).node).commands == ()


V1 = "5:memory:{0}\n4:cpuset:{0}\n3:devices:{0}\n1:name=systemd:/system.slice/x.service\n0::/\n"

JOBS = {
    "0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0\n": "scontrol requeue 4711",
    V1.format("/pbs_jobs.service/jobid/1234.server"): "qrerun 1234.server",
    V1.format("/pbs_jobs.service/jobid/1234[7].server"): "qrerun '1234[7].server'",
    "0::/pbs_jobs.service/jobs/1234.8\n": "qrerun '1234[7]'",
    V1.format("/torque/1234.server"): "qrerun 1234.server",
    V1.format("/lsf/cluster1/job.4711.100.1700000000"): "brequeue 4711",
    "0::/system.slice/sge-12.3.scope\n": "qmod -rj 12.3",
    "0::/ocs8036.slice/ocs8036-jobs.slice/ocs8036.42.scope\n": "qmod -rj 42",
}


@pytest.mark.parametrize(("cgroup", "command"), JOBS.items())
def test_a_job_is_rerun_by_its_batch_system(cgroup: str, command: str) -> None:
    own = [process(pid, cgroup=cgroup) for pid in (600, BESIDE)]
    node = scene(*own, process(601))
    assert (rerun(node).commands, rerun(node).ends) == ((command,), 1)


@pytest.mark.parametrize(
    "name", ["1;reboot", "1 2", "$(id).server", "1[*].server", "-1", "s0EKNKTV3WPV500", "1.server\nreboot", "1.-a", ""]
)
def test_no_text_but_an_id_is_in_a_command(name: str) -> None:
    for path in (
        f"/pbs_jobs.service/jobid/{name}",
        f"/system.slice/sge-{name}.scope",
        f"/system.slice/slurmstepd.scope/{name}",
    ):
        node = scene(process(BESIDE, cgroup=f"0::{path}\n"), process(600))
        assert rerun(node).commands == ()


def test_a_daemon_that_a_shared_unit_declares_is_not_restarted_through_it() -> None:
    for unit in ("pbs.service", "slurmd.service", "cron.service"):
        found = DaemonFound(
            at=AT, daemon=DAEMON, pipe_directory=DAEMON, log_directory=DAEMON, expected=True, unit=unit, by="unit"
        )
        node = reduced(found, start=scene(process(600))).node
        for policy in (None, Policy(daemon_policies={DAEMON: DaemonPolicy(unit=unit)})):
            daemon = node.daemons[DAEMON]
            commands = (*commands_to_start(node, daemon, policy), *commands_to_restart(node, daemon, policy))
            assert not [each for each in commands if unit in each]


def test_the_same_command_for_two_daemons_ends_its_clients_once() -> None:
    step = ManualStep(text="Restart.", commands=("kubectl delete pod --namespace team mps-0",), ends=3)
    found = [Finding(DaemonProblem.DAEMON_UNRESPONSIVE, at=AT, daemon=name, steps=(step,)) for name in ("/a", "/b")]
    (status,) = finding_statuses(found)
    assert status.steps == (step,)


def test_counts_the_clients_of_all_daemons_of_a_unit() -> None:
    unit = "mps-all.service"
    node = scene(process(600), process(601), in_unit(700, unit, ALICE))
    first = with_fields(node.daemons[DAEMON], declared__unit=unit, runtime__unit=unit)
    cgroup = f"0::/system.slice/{unit}\n"
    runs = replace(daemon_process(CONTROL + 1), cgroup=cgroup)
    second = with_fields(
        first, name="/run/second", runtime__last_process=runs, clients={650: replace(first.clients[600], pid=650)}
    )
    first = replace(first, clients={pid: client for pid, client in first.clients.items() if pid != 700})
    third = replace(first, name="/run/third", declared=node.daemons[DAEMON].declared, clients={700: first.clients[600]})
    node = replace(node, daemons={each.name: each for each in (first, second, third)})
    assert clients_beside(node, first) == 4
