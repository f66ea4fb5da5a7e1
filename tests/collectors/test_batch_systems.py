"""Which process of root names the job of a process of HTCondor, Flux or Grid Engine, and what a user can forge."""

from pathlib import Path
from typing import Any

import pytest

from exporter.collectors import workload_processes
from exporter.collectors.proc import Proc
from exporter.collectors.workload_processes import NEW_SECONDS, SEARCH_SECONDS
from exporter.model.identity import WorkloadRole
from tests.collectors.test_workload_processes import DAEMON, Processes

ID = "a" * 64
USER = "/user.slice/user-1000.slice/user@1000.service"
NO_JOB = (None, None)


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Processes:
    """A node, of which groups below 60000 have names."""
    monkeypatch.setattr(workload_processes, "has_name", lambda group: group < 60000)
    node = Processes(tmp_path)
    node.add(1, "systemd", "/init.scope", 0)
    return node


# -- HTCondor: the path of a cgroup has the slot -----------------------------------------------------------------------

SLOT, OTHER_SLOT = (f"/htcondor/condor_var_lib_condor_execute_slot1_{slot}@n1.example.org" for slot in (1, 2))
MASTER = "/system.slice/condor.service"
STARTER = "condor_starter\0-f\0-local-name\0slot_type_1"


def unreadable(proc: Proc, pid: int, name: str) -> str:
    raise PermissionError(pid, name, proc)


def starter(job: str, slot: str = "slot1_1") -> str:
    return f"{STARTER}\0-a\0{job}\0-slot-name\0{slot}\0submit.example.org"


def test_the_starter_of_a_slot_names_its_job(processes: Processes) -> None:
    processes.add(10, "condor_starter", MASTER, title=starter("14.0"))
    processes.add(11, "condor_starter", MASTER, title=starter("15.3", "slot1_2"))
    processes.add(20, "python3", SLOT, 10, uid=1001)
    processes.add(21, "python3", OTHER_SLOT, uid=1001)
    processes.add(22, "condor_starter", f"{USER}/app.slice/condor.service", title=starter("1.0"), uid=1002)
    processes.add(23, "python3", f"{USER}/app.slice/condor.service", 22, uid=1002)
    assert (processes.job(20), processes.job(21)) == (("htcondor", "14.0"), ("htcondor", "15.3"))
    assert processes.job(23) == NO_JOB
    assert not processes.may_know_more(SLOT)


def test_a_slot_without_the_job_in_the_arguments_of_its_starter_has_no_job(processes: Processes) -> None:
    processes.add(10, "condor_starter", MASTER, title=f"{STARTER}\0-a\0slot1_1\0submit.example.org")
    processes.add(20, "python3", SLOT, 10, uid=1001)
    assert processes.job(20) == ("htcondor", None)
    assert not processes.may_know_more(SLOT)


def test_a_slot_has_the_job_of_its_present_starter(processes: Processes) -> None:
    """Two starters of one slot are ambiguous."""
    processes.add(10, "condor_starter", MASTER, title=starter("14.0"))
    processes.add(11, "condor_starter", MASTER, title=starter("15.0"))
    processes.add(20, "python3", SLOT, 11, uid=1001)
    assert processes.job(20) == ("htcondor", None)
    assert processes.may_know_more(SLOT)
    processes.end(10)
    processes.clock.time += SEARCH_SECONDS
    assert processes.job(20) == ("htcondor", "15.0")


def test_the_next_job_of_a_slot_has_its_own_name(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until a search finds the starter of the next job, it has none."""
    processes.add(10, "condor_starter", MASTER, title=starter("14.0"))
    processes.add(20, "python3", SLOT, 10, uid=1001)
    assert processes.job(20) == ("htcondor", "14.0")
    processes.end(20)
    processes.end(10)
    processes.add(11, "condor_starter", MASTER, title=starter("15.0"))
    processes.add(21, "python3", SLOT, 11, uid=1002)
    assert processes.job(21) == ("htcondor", None)
    processes.clock.time += NEW_SECONDS
    with monkeypatch.context() as patch:
        patch.setattr(Proc, "certain_text", unreadable)
        assert processes.job(21) == ("htcondor", None)
    processes.clock.time += NEW_SECONDS
    assert processes.job(21) == ("htcondor", "15.0")


@pytest.mark.parametrize(
    ("name", "cgroup", "more"),
    [
        ("condor_starter", MASTER, {"uid": 1000}),
        ("condor_starter", MASTER, {"users": "0 100000 65536"}),
        ("condor_starter", MASTER, {"namespaces": "\t7"}),
        ("condor_starter", f"{USER}/app.slice/x.service", {}),
        ("condor_starter", f"/system.slice/docker-{ID}.scope", {}),
        ("condor_starter", f"/docker/{ID}", {}),
        ("condor_starter", OTHER_SLOT, {}),
        ("python3", MASTER, {}),
    ],
)
def test_no_other_process_names_the_job_of_a_slot(
    processes: Processes, name: str, cgroup: str, more: dict[str, Any]
) -> None:
    processes.add(10, name, cgroup, title=starter("666.0"), **more)
    processes.add(20, "python3", SLOT, uid=1001)
    assert processes.job(20) == ("htcondor", None)


@pytest.mark.parametrize("cgroup", [f"{USER}/htcondor/x_slot1_1@n1", f"/docker/{ID}{SLOT}", f"{MASTER}{SLOT}"])
def test_a_slot_that_a_user_made_is_none(processes: Processes, cgroup: str) -> None:
    processes.add(10, "condor_starter", MASTER, title=starter("14.0"))
    processes.add(20, "python3", cgroup, uid=1000)
    assert processes.job(20) == NO_JOB


# -- Flux: jobs are in the service manager of the user who runs it -----------------------------------------------------

BROKER = "/system.slice/flux.service"


def flux_job(user: int) -> str:
    return f"/user.slice/user-{user}.slice/user@{user}.service/app.slice/imp-shell-0-fTE9HHdZvi3.service"


def test_believes_the_jobs_of_the_user_who_runs_the_broker(processes: Processes) -> None:
    """A job in the unit of the broker, such as of eve, is younger than the broker."""
    processes.add(10, "flux-broker-0", BROKER, uid=500)
    processes.add(11, "flux-broker-0", BROKER, uid=1000)
    processes.add(20, "python3", flux_job(500), uid=1001)
    processes.add(21, "python3", flux_job(1000), uid=1000)
    assert (processes.job(20), processes.job(21)) == (("flux", "fTE9HHdZvi3"), NO_JOB)


@pytest.mark.parametrize("cgroup", [f"{USER}/flux.service", f"/docker/{ID}{BROKER}", "/system.slice/other.service"])
def test_believes_no_flux_of_a_user(processes: Processes, cgroup: str) -> None:
    processes.add(10, "flux-broker-0", cgroup, uid=1000)
    processes.add(20, "python3", flux_job(1000), uid=1000)
    assert processes.job(20) == NO_JOB


# -- Grid Engine: the working directory of root's shepherd -------------------------------------------------------------

EXECD = "/system.slice/gridengine-exec.service"
SPOOL = "/var/spool/gridengine/execd/n1/active_jobs"


def task(node: Processes, pid: int, name: str, uid: int, *groups: int) -> None:
    """Add a shepherd, its script, and a program of that."""
    node.add(pid, "sge_shepherd", EXECD, 5, directory=f"{SPOOL}/{name}", groups=(103,))
    node.add(pid + 1, "bash", EXECD, pid, uid=uid, groups=(uid, *groups))
    node.add(pid + 2, "python3", EXECD, pid + 1, uid=uid, groups=(uid, *groups))


def test_an_ancestor_names_the_task(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Proc, "pids", lambda _: pytest.fail("searched"))
    processes.add(5, "sge_execd", EXECD)
    task(processes, 10, "1.2", 1001, 65401)
    task(processes, 20, "1.3", 1001, 65402)
    assert [processes.job(pid) for pid in (11, 12, 22)] == [("grid_engine", "1.2")] * 2 + [("grid_engine", "1.3")]


def test_the_next_task_with_the_same_group_has_its_own_name(processes: Processes) -> None:
    processes.add(5, "sge_execd", EXECD)
    task(processes, 10, "1.2", 1001, 65401)
    processes.add(30, "python3", EXECD, uid=1001, groups=(1001, 65401))
    assert processes.job(30) == ("grid_engine", "1.2")
    for pid in (10, 11, 12, 30):
        processes.end(pid)
    task(processes, 20, "2.1", 1001, 65401)
    processes.add(31, "python3", EXECD, uid=1001, groups=(1001, 65401))
    processes.clock.time += NEW_SECONDS
    assert processes.job(31) == ("grid_engine", "2.1")


@pytest.mark.parametrize(
    ("uid", "groups"), [(1000, (1000, 65401)), (1001, (1001,)), (1001, (1001, 65403)), (1001, (1001, 65401, 65402))]
)
def test_another_user_or_group_is_no_task(processes: Processes, uid: int, groups: tuple[int, ...]) -> None:
    processes.add(5, "sge_execd", EXECD)
    task(processes, 10, "1.2", 1001, 65401)
    processes.add(30, "python3", EXECD, uid=uid, groups=groups)
    assert processes.job(30) == NO_JOB


@pytest.mark.parametrize(("groups", "job"), [((65401, 65402), ("grid_engine", "1.3")), ((65402, 65402), NO_JOB)])
def test_a_process_that_left_its_ancestors_has_the_task_that_alone_has_its_group(
    processes: Processes, groups: tuple[int, int], job: tuple[str | None, str | None]
) -> None:
    """Without extra groups, groups of the user that have no name here would be taken for one."""
    processes.add(5, "sge_execd", EXECD)
    for pid, name, group in zip((10, 20), ("1.2", "1.3"), groups, strict=True):
        task(processes, pid, name, 1001, group)
    processes.add(30, "python3", EXECD, uid=1001, groups=(1001, 65402))
    assert processes.job(30) == job


@pytest.mark.parametrize(
    ("name", "cgroup", "more"),
    [
        ("sge_shepherd", EXECD, {"uid": 1000}),
        ("sge_shepherd", EXECD, {"users": "0 100000 65536"}),
        ("sge_shepherd", EXECD, {"namespaces": "\t7"}),
        ("sge_shepherd", f"{USER}/app.slice/x.service", {}),
        ("sge_shepherd", f"/system.slice/docker-{ID}.scope", {}),
        ("sudo", EXECD, {}),
    ],
)
def test_no_other_process_names_a_task(processes: Processes, name: str, cgroup: str, more: dict[str, Any]) -> None:
    processes.add(10, name, cgroup, directory=f"{SPOOL}/1.2", **more)
    processes.add(11, "python3", EXECD, 10, uid=1000, groups=(1000, 65401), directory=f"{SPOOL}/1.2")
    processes.add(12, "python3", EXECD, uid=1000, groups=(1000, 65401))
    assert (processes.job(11), processes.job(12)) == (NO_JOB, NO_JOB)


@pytest.mark.parametrize("cgroup", [f"{USER}/app.slice/x.service", f"/docker/{ID}"])
def test_a_task_below_a_user_or_container_is_none(processes: Processes, cgroup: str) -> None:
    task(processes, 10, "1.2", 1001, 65401)
    processes.add(30, "python3", cgroup, 11, uid=1001, groups=(1001, 65401))
    assert processes.job(30) == NO_JOB


def test_a_younger_process_with_the_pid_of_an_ancestor_names_nothing(processes: Processes) -> None:
    processes.add(40, "sge_shepherd", EXECD, directory=f"{SPOOL}/1.2")
    processes.add(30, "python3", EXECD, 40, uid=1001)
    assert processes.job(30) == NO_JOB


def test_a_group_that_is_not_known_yet_is_searched_later(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    searches, pids = [], Proc.pids
    monkeypatch.setattr(Proc, "pids", lambda self: searches.append(1) or pids(self))
    processes.add(30, "python3", EXECD, uid=1001, groups=(1001, 65401))
    assert processes.job(30) == NO_JOB
    assert processes.may_know_more(EXECD, 30)
    task(processes, 10, "1.2", 1001, 65401)
    processes.clock.time += NEW_SECONDS
    assert processes.job(30) == NO_JOB
    assert len(searches) == 1
    processes.clock.time += SEARCH_SECONDS
    assert processes.job(30) == ("grid_engine", "1.2")
    assert not processes.may_know_more(EXECD, 30)


def test_searches_nothing_for_a_process_whose_groups_have_names(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Proc, "pids", lambda _: pytest.fail("searched"))
    processes.add(30, "python3", "/system.slice/train.service", uid=1001, groups=(1001, 27))
    assert processes.job(30) == NO_JOB


# -- The processes that show the end of a daemon's job -----------------------------------------------------------------


def test_finds_the_processes_of_a_slot(processes: Processes) -> None:
    processes.add(10, "condor_starter", MASTER, title=starter("14.0"))
    processes.add(20, "bash", SLOT, 10, uid=1001)
    processes.add(21, "python3", SLOT, 20, uid=1001)
    processes.add(22, "bash", OTHER_SLOT, 10, uid=1001)
    processes.add(DAEMON, "nvidia-cuda-mps", SLOT, uid=1001)
    assert processes.found(SLOT) == [(20, WorkloadRole.TASK)]


def test_finds_the_processes_of_a_task_of_grid_engine(processes: Processes) -> None:
    """The daemon has left them."""
    processes.add(5, "sge_execd", EXECD)
    task(processes, 10, "1.2", 1001, 65401)
    task(processes, 20, "1.3", 1001, 65402)
    processes.add(DAEMON, "nvidia-cuda-mps", EXECD, uid=1001, groups=(1001, 65401))
    assert processes.found(EXECD) == [(11, WorkloadRole.TASK)]


def test_finds_the_processes_of_a_job_of_flux(processes: Processes) -> None:
    processes.add(10, "flux-broker-0", BROKER, uid=500)
    processes.add(20, "flux-shell", flux_job(500), uid=1001)
    processes.add(DAEMON, "nvidia-cuda-mps", flux_job(500), uid=1001)
    assert processes.found(flux_job(500)) == [(20, WorkloadRole.TASK)]
