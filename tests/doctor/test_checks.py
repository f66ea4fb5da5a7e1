"""Each check finds its mistake and no other; on a correct node, no check finds one."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from exporter.config.settings import Attribution
from exporter.doctor import CHECKS, daemons, examine, report_lines
from exporter.doctor.facts import Area, ExporterProcess, Facts, LibcudaProbesFacts, NotExamined, Programs
from exporter.doctor.readers import not_examined
from exporter.model.daemon import DaemonState, FailedStarts, NamedBy
from exporter.model.node import CollectorName, Gpu
from exporter.model.observation import DaemonProcess, GpuProcess
from exporter.model.reason import Reason, ReasonCode
from exporter.model.settings import (
    ACTIVE_THREAD_PERCENTAGE,
    LOG_DIRECTORY,
    PINNED_MEMORY_LIMIT,
    PIPE_DIRECTORY,
    VISIBLE_DEVICES,
    Mode,
)
from exporter.parse.proc import Capability
from exporter.report.document_parts import Severity
from exporter.report.finding import Finding
from exporter.report.problems import PROBLEMS, DaemonProblem, Situation
from exporter.report.remedy import DOCTOR
from exporter.report.text import counted, text_of
from tests.builders import AT, CLIENT, CONTROL, GPU, OTHER_GPU, UNIT, denied, failure, gpu_reading, look, reduced
from tests.doctor.healthy import (
    ALL_RIGHTS,
    BYPASSING,
    CONTAINERS,
    CONTROL_LOG,
    DAEMON,
    NODES,
    OTHER_PIPE,
    OTHER_SHARED,
    configured,
    daemon,
    directory,
    exporter_process,
    healthy,
    process,
    with_bypassing,
    with_daemon,
    with_gpu,
    with_problem,
)
from tests.status import commands_of

INFO, UNKNOWN, WARNING, CRITICAL = Severity.INFO, Severity.UNKNOWN, Severity.WARNING, Severity.CRITICAL
TMP = "/tmp/nvidia-mps"
LIBCUDA = "/usr/lib/x86_64-linux-gnu/libcuda.so.1"
ACTS = 1 << Capability.KILL | 1 << Capability.SETUID | 1 << Capability.SETGID
WORDS = "Failed to start : invalid argument"
WITHOUT = 1 << Capability.SYS_ADMIN | 1 << Capability.DAC_OVERRIDE
LOST = Reason(ReasonCode.GPU_LOST, detail="GPU is lost")


def of_directory(**changes: Any) -> Facts:
    return healthy(directories={DAEMON: directory(**changes)})


def of_daemon(**changes: Any) -> Facts:
    return healthy(daemons=(daemon(**changes),))


def unreadable_log() -> Facts:
    """Return facts of a daemon with a log that cannot be read."""
    problem = Reason(ReasonCode.PERMISSION_DENIED, subject=CONTROL_LOG, detail="Permission denied")
    return with_daemon(healthy(), log__problems={"control.log": problem})


def without_server_log() -> Facts:
    """Return facts of a daemon that has not started a server yet."""
    return with_daemon(healthy(), log__problems={"server.log": Reason(ReasonCode.NOT_FOUND, subject="server.log")})


def of_exporter(**changes: Any) -> Facts:
    return healthy(exporter=exporter_process(**changes))


def of_programs(**changes: Any) -> Facts:
    return healthy(programs=Programs(**{"control": "/c", "server": "/s", "version": "13000"} | changes))


def without_nvml(code: ReasonCode) -> Facts:
    """Return facts of a node where NVML does not work."""
    if code is ReasonCode.PACKAGE_CONFLICT:
        return with_problem(healthy(), Reason(code, subject="pynvml"))
    return with_problem(healthy(), failure("as NVML says", code))


def bypassing(**changes: Any) -> Facts:
    return with_bypassing(healthy(), process(BYPASSING, **changes))


def client(**variables: str) -> Facts:
    return healthy(processes={CLIENT: process(environment={PIPE_DIRECTORY: DAEMON} | variables)})


def starting(**variables: str) -> Facts:
    """Return facts of a client without a context yet."""
    return with_gpu(client(**variables), compute_processes=(), mps_processes=())


def another_user_waits() -> Facts:
    """Return facts of a client that waits until those of another user have exited."""
    facts = healthy(processes={BYPASSING: process(BYPASSING, uid=1002)})
    return with_daemon(facts, connections__queued={BYPASSING: 1002}, connections__waiting={BYPASSING: AT})


def crash_loop(facts: Facts, ago: float = 30) -> Facts:
    """Return the facts after six servers of a user exited before they were ready, `ago` seconds ago."""
    at = facts.node.at - ago
    failed = FailedStarts(started_at=(at,) * 3, count=6, uid=1001, words=WORDS, last_exit_at=at, reported=True)
    return with_daemon(facts, connections__failed_starts=failed)


def ended(**changes: Any) -> Facts:
    facts = with_daemon(
        healthy(daemons=(), **changes), state=DaemonState.DOWN, runtime__process=None, clients={}, servers={}
    )
    return replace(facts, processes={})


def in_tmp() -> Facts:
    facts = with_daemon(healthy(), pipe_directory=TMP)
    own = daemon(environment={PIPE_DIRECTORY: TMP})
    return replace(facts, daemons=(own,), directories={DAEMON: directory(path=TMP)})


def without_daemons() -> Facts:
    facts = healthy(config=configured(), daemons=(), processes={})
    return replace(facts, node=replace(facts.node, daemons={}))


def other_daemon_of_the_gpu() -> Facts:
    facts = healthy()
    both = {**facts.node.daemons, "/run/other": replace(facts.node.daemons[DAEMON], name="/run/other")}
    return replace(
        facts,
        node=replace(facts.node, daemons=both),
        daemons=(daemon(), daemon(name="/run/other")),
        directories={},
    )


def waits_with_another_shm() -> Facts:
    facts = healthy(processes={CLIENT: process(shared_memory=OTHER_SHARED)})
    return with_daemon(facts, clients={}, connections__queued={CLIENT: 1})


def log_to_a_pipe() -> Facts:
    runtime = {"runtime__foreground": True, "runtime__stdout_in_file": False, "runtime__unit": None}
    problem = Reason(ReasonCode.LOG_TO_STDOUT)
    return with_daemon(healthy(), log__problems={"stdout.log": problem}, **runtime)


def with_attribution(exporter: ExporterProcess | None = None, **changes: Any) -> Facts:
    probes = LibcudaProbesFacts(**{"libraries": (LIBCUDA,)} | changes)
    process = exporter_process() if exporter is None else exporter
    return healthy(config=configured(attribution=Attribution.BPF), libcuda_probes=probes, exporter=process)


def unable_to_count() -> Facts:
    return with_attribution(exporter=exporter_process(capabilities=ALL_RIGHTS & ~WITHOUT & ~(1 << Capability.BPF)))


def unable_to_act() -> Facts:
    exporter = exporter_process(capabilities=1 << Capability.SYS_PTRACE)
    return healthy(config=configured(watchdog=Mode.ACT), exporter=exporter)


Mistake = tuple[str, Severity, str, Callable[[], Facts]]

MISTAKES: tuple[Mistake, ...] = (
    ("configuration_unusable", CRITICAL, "no such key", lambda: healthy(config_problem="log.levl: no such key")),
    (
        "configuration_unusable",
        CRITICAL,
        "no bcrypt hash",
        lambda: healthy(config=configured(web_config_file=Path("/etc/web.yml")), web_problem="no bcrypt hash"),
    ),
    (
        "history_not_writable",
        WARNING,
        "read-only",
        lambda: of_exporter(state_directory="/e", state_problem="read-only"),
    ),
    ("mps_program_unusable", CRITICAL, "is not in PATH", lambda: healthy(programs=Programs())),
    ("mps_program_unusable", CRITICAL, "format error", lambda: of_programs(version=None, problem="exec format error")),
    ("mps_program_unusable", WARNING, "get error 805", lambda: of_programs(server=None)),
    ("version_mismatch", WARNING, "CUDA 12.4, the driver 13.0", lambda: of_programs(version="12040")),
    ("daemon_outdated", WARNING, "was replaced", lambda: of_daemon(outdated=True)),
    ("nvml_unusable", CRITICAL, "Reload the driver", lambda: without_nvml(ReasonCode.DRIVER_MISMATCH)),
    ("nvml_unusable", CRITICAL, "as NVML says", lambda: without_nvml(ReasonCode.LIBRARY_MISSING)),
    ("nvml_unusable", CRITICAL, "Replace this file", lambda: without_nvml(ReasonCode.LIBRARY_UNUSABLE)),
    ("nvml_unusable", CRITICAL, "as NVML says", lambda: without_nvml(ReasonCode.CONTAINER_WITHOUT_GPUS)),
    ("nvml_unusable", CRITICAL, "pynvml hides", lambda: without_nvml(ReasonCode.PACKAGE_CONFLICT)),
    ("no_gpu", WARNING, "", lambda: replace(healthy(), node=replace(healthy().node, gpus={}))),
    ("gpu_lost", CRITICAL, "is lost", lambda: with_gpu(healthy(), problem=LOST)),
    ("gpu_unreadable", CRITICAL, "Unknown Error", lambda: with_gpu(healthy(), problem=failure("Unknown Error"))),
    ("compute_mode", CRITICAL, "no process can use CUDA", lambda: with_gpu(healthy(), compute_mode="prohibited")),
    ("compute_mode", INFO, "silently bypasses MPS", lambda: with_gpu(healthy(), compute_mode="default")),
    ("mig", WARNING, "", lambda: with_gpu(healthy(), mig_mode=True)),
    ("pre_volta", WARNING, "is 6.1", lambda: with_gpu(healthy(), compute_capability="6.1")),
    ("persistence_off", INFO, "", lambda: with_gpu(healthy(), persistence_mode=False)),
    (
        "visible_devices_wrong",
        CRITICAL,
        "entry is 4: there is no such",
        lambda: of_daemon(environment={VISIBLE_DEVICES: "0,4"}),
    ),
    ("visible_devices_wrong", CRITICAL, "it repeats a GPU", lambda: of_daemon(environment={VISIBLE_DEVICES: "0,0"})),
    ("visible_devices_wrong", CRITICAL, "entry is -1", lambda: of_daemon(environment={VISIBLE_DEVICES: "-1"})),
    ("visible_devices_wrong", CRITICAL, OTHER_GPU, lambda: of_daemon(environment={VISIBLE_DEVICES: OTHER_GPU})),
    ("visible_devices_wrong", WARNING, "no such GPU. The daemon has 1", lambda: starting(**{VISIBLE_DEVICES: "0,1"})),
    ("visible_devices_wrong", WARNING, OTHER_GPU, lambda: starting(**{VISIBLE_DEVICES: OTHER_GPU})),
    ("gpu_of_two_daemons", WARNING, "", other_daemon_of_the_gpu),
    ("no_daemon", WARNING, "", without_daemons),
    ("daemon_down", CRITICAL, f"{DAEMON} is down", ended),
    ("daemon_unresponsive", CRITICAL, "not answer", lambda: with_daemon(healthy(), state=DaemonState.UNRESPONSIVE)),
    ("daemon_unknown", UNKNOWN, "is not known yet", lambda: with_daemon(healthy(), state=None)),
    ("daemon_held", WARNING, "open session", lambda: with_daemon(healthy(), state=DaemonState.HELD)),
    ("clients_waiting", WARNING, "another user's clients", another_user_waits),
    ("log_not_followed", WARNING, "cannot read a log", log_to_a_pipe),
    ("server_crash_loop", CRITICAL, "", lambda: crash_loop(healthy())),
    ("server_crash_loop", WARNING, "6 in a row", lambda: crash_loop(healthy(), ago=3600)),
    (
        "daemon_not_expected",
        INFO,
        "",
        lambda: with_daemon(healthy(), declared__expected=False, declared__by=NamedBy.DISCOVERED),
    ),
    ("few_open_files", INFO, "limit is 1024", lambda: of_daemon(open_files=1024)),
    ("few_open_files", INFO, "limit is 16383", lambda: of_daemon(open_files=16383)),
    ("two_daemons", CRITICAL, "", lambda: healthy(daemons=(daemon(), daemon(own_pid=442)))),
    ("directory_closed", CRITICAL, "enter /run", lambda: of_directory(closed="/run")),
    ("directory_writable", WARNING, f"write to {DAEMON}", lambda: of_directory(writable=True)),
    ("directory_writable", INFO, "0666", lambda: of_directory(pid_file_mode=0o666)),
    ("directory_writable", INFO, "0664", lambda: of_directory(pid_file_mode=0o664)),
    ("pid_file_wrong", CRITICAL, "", lambda: of_directory(pid=1)),
    ("pid_file_wrong", CRITICAL, "", lambda: of_directory(pid=None, pid_file_mode=None)),
    *(
        ("log_fifo_open", WARNING, f"{mode:04o}", lambda mode=mode: of_directory(log_fifo_mode=mode))
        for mode in (0o777, 0o640, 0o620, 0o604, 0o602)
    ),
    ("unit_not_there", CRITICAL, "", lambda: healthy(private_tmp={})),
    ("unit_private_tmp", CRITICAL, "Other CUDA processes", lambda: replace(in_tmp(), private_tmp={UNIT: True})),
    (
        "unit_private_tmp",
        CRITICAL,
        "CAP_SYS_PTRACE",
        lambda: replace(in_tmp(), private_tmp={UNIT: False, "cuda-mps-exporter.service": True}),
    ),
    ("process_bypassing", WARNING, "(the default)", lambda: bypassing(environment={}, pipe=None)),
    (
        "process_bypassing",
        WARNING,
        TMP,
        lambda: with_bypassing(
            in_tmp(), process(BYPASSING, environment={PIPE_DIRECTORY: TMP}, pipe=None, unit="train.service")
        ),
    ),
    ("process_bypassing", WARNING, "In their container", lambda: bypassing(pipe=None, container="c0ffee")),
    ("process_bypassing", WARNING, "they started while no daemon ran", bypassing),
    ("shared_memory_differs", WARNING, "", waits_with_another_shm),
    ("pid_namespace_differs", WARNING, "", lambda: of_daemon(pid_namespaces=(CONTAINERS, NODES))),
    ("exporter_pid_namespace", INFO, "", lambda: replace(of_exporter(pid_namespaces=(CONTAINERS, NODES)), apart=True)),
    (
        "exporter_pid_namespace",
        WARNING,
        "Whether a daemon runs is unknown",
        lambda: replace(ended(exporter=exporter_process(pid_namespaces=(CONTAINERS,))), apart=True),
    ),
    (
        "exporter_pid_namespace",
        WARNING,
        "Unknown processes on GPUs: 1",
        lambda: healthy(exporter=exporter_process(pid_namespaces=(CONTAINERS,)), processes={}),
    ),
    ("thread_percentage_wrong", CRITICAL, "is 0", lambda: client(**{ACTIVE_THREAD_PERCENTAGE: "0"})),
    ("thread_percentage_wrong", CRITICAL, "is 150", lambda: client(**{ACTIVE_THREAD_PERCENTAGE: "150"})),
    ("thread_percentage_wrong", CRITICAL, "is nan", lambda: client(**{ACTIVE_THREAD_PERCENTAGE: "nan"})),
    ("thread_percentage_wrong", CRITICAL, "is 40%", lambda: of_daemon(environment={ACTIVE_THREAD_PERCENTAGE: "40%"})),
    (
        "memory_limit_without_effect",
        WARNING,
        "no effect in the environment",
        lambda: of_daemon(environment={PINNED_MEMORY_LIMIT: "0=2G"}),
    ),
    (
        "memory_limit_without_effect",
        WARNING,
        "limits device 1 and 7. The daemon has 1 GPU",
        lambda: healthy(config=configured(pinned_memory_limits=((0, 2 << 30), (1, 2 << 30), (7, 2 << 30)))),
    ),
    *(
        ("memory_limit_without_effect", WARNING, words, lambda variables=variables: client(**variables))
        for words, variables in (
            ("device 0 is not a size", {PINNED_MEMORY_LIMIT: "0=much"}),
            ("device 0 is not a size", {PINNED_MEMORY_LIMIT: "0=0"}),
            ("device 1 is not visible", {PINNED_MEMORY_LIMIT: "1=2G", VISIBLE_DEVICES: "0"}),
            ("device 1 is not visible", {PINNED_MEMORY_LIMIT: "1=2G", VISIBLE_DEVICES: GPU}),
            ("device 1 is not visible", {PINNED_MEMORY_LIMIT: "0=2G,1=2G"}),
            ("names no device", {PINNED_MEMORY_LIMIT: "1G"}),
            ("names no device", {PINNED_MEMORY_LIMIT: "\u201d0=1G\u201d"}),
            ("GPU-7 names no device", {PINNED_MEMORY_LIMIT: "GPU-7=1G"}),
        )
    ),
    (
        "acts_without_restart",
        CRITICAL,
        "",
        lambda: with_daemon(healthy(config=configured(unit=None, watchdog=Mode.ACT)), declared__unit=None),
    ),
    ("log_not_followed", WARNING, "Permission denied", unreadable_log),
    (
        "log_not_followed",
        WARNING,
        "in the journal",
        lambda: with_daemon(of_exporter(reads_journal=False), runtime__foreground=True),
    ),
    ("log_directory_differs", WARNING, "/var/log/mps", lambda: of_daemon(environment={LOG_DIRECTORY: "/var/log/mps"})),
    ("log_not_rotated", WARNING, "control.log.1", lambda: of_daemon(written=(f"{CONTROL_LOG}.1",))),
    ("log_not_rotated", WARNING, "control.log-20261121", lambda: of_daemon(written=(f"{CONTROL_LOG}-20261121",))),
    ("log_not_rotated", WARNING, "256 MiB", lambda: with_daemon(healthy(), log__sizes={"control.log": 256 << 20})),
    ("log_not_rotated", WARNING, "1024 MiB", lambda: with_daemon(healthy(), log__sizes={"control.log": 1 << 30})),
    ("exporter_rights", WARNING, "lacks CAP_SYS_PTRACE", lambda: of_exporter(capabilities=1 << Capability.SYSLOG)),
    ("exporter_rights", WARNING, "lacks CAP_KILL, CAP_SETUID, CAP_SETGID", unable_to_act),
    ("exporter_rights", CRITICAL, "CAP_DAC_OVERRIDE", lambda: of_exporter(capabilities=ALL_RIGHTS)),
    ("kernel_log_closed", INFO, "CAP_SYSLOG", lambda: of_exporter(kernel_log="it lacks CAP_SYSLOG")),
    ("launches_not_counted", WARNING, "lacks CAP_BPF", unable_to_count),
    ("launches_not_counted", WARNING, "kernel refuses", lambda: with_attribution(refused="cannot make the BPF map")),
    ("launches_not_counted", WARNING, "No libcuda.so.1", lambda: with_attribution(libraries=())),
    ("launches_not_counted", WARNING, "", lambda: with_attribution(problems=("libcuda.so.1 of PID 7: no ELF file",))),
    (
        "not_examined",
        UNKNOWN,
        "systemd units: hidden",
        lambda: healthy(not_examined=(NotExamined(area=Area.UNITS, reason="hidden", fix="Look as root."),)),
    ),
)


def found(facts: Facts) -> list[Finding]:
    return list(examine(facts).findings)


def test_accepts_one_log_directory_with_two_paths() -> None:
    facts = of_daemon(environment={LOG_DIRECTORY: "/mps/log"}, logs=(1, 2))
    for inode, reported in ((2, False), (3, True)):
        report = examine(replace(facts, configured_logs={DAEMON: (1, inode)}))
        assert ("log_directory_differs" in {finding.problem.code for finding in report.findings}) is reported


def test_reports_nothing_on_a_node_without_mistakes() -> None:
    report = examine(healthy())
    assert (report.findings, report.unknown, report.exit_code) == ((), (), 0)
    assert [check.code for check in report.ok] == [check.code for check in CHECKS]


def test_reports_the_mistake_and_nothing_else(subtests: pytest.Subtests) -> None:
    for id_, severity, words, make in MISTAKES:
        with subtests.test(id_=id_, severity=severity, words=words):
            (finding,) = found(make())
            assert (finding.problem.code, finding.severity) == (id_, severity)
            assert words in finding.text


def test_never_advises_to_run_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    every = [
        Finding(problem, situation=each, commands=(DOCTOR,)) for problem in PROBLEMS for each in (None, *Situation)
    ]
    monkeypatch.setattr(daemons, "findings", lambda *_: every)
    steps = [
        step
        for finding in (*found(healthy()), *found(without_nvml(ReasonCode.LIBRARY_MISSING)))
        for step in finding.steps
    ]
    assert {step.text for step in steps} >= {
        "Other findings show what the exporter lacks.",
        "Restrict the log fifo to the daemon's user.",
        "Fix what prevents the exporter from querying the daemon.",
        "In a container, provide the driver's libraries and devices (--gpus all, or NVIDIA_VISIBLE_DEVICES).",
    }
    assert not [step for step in steps if DOCTOR in f"{step.text}{step.commands}"]


def test_each_check_has_a_test() -> None:
    codes = {code for code, *_ in MISTAKES}
    assert {check.code for check in CHECKS} - codes == {"reported_by_status"}, "its findings have codes of their own"
    assert len({check.code for check in CHECKS}) == len(CHECKS)


def test_problems_of_status_have_its_codes_and_commands() -> None:
    (finding,) = found(ended())
    assert (finding.problem, finding.daemon) == (DaemonProblem.DAEMON_DOWN, DAEMON)
    assert finding.steps[0].commands == (f"systemctl restart {UNIT}",)


def test_a_search_that_failed_does_not_show_that_no_daemon_runs() -> None:
    facts = without_daemons()
    failed = reduced(look(CollectorName.DISCOVERY, problem=denied("/proc")), start=facts.node).node

    assert "no_daemon" not in {finding.problem.code for finding in found(replace(facts, node=failed))}


def test_default_compute_mode_is_a_warning_with_bypassing_processes() -> None:
    facts = with_gpu(bypassing(environment={}, pipe=None), compute_mode="default")
    (mode,) = [finding for finding in found(facts) if finding.problem.code == "compute_mode"]
    assert mode.severity is WARNING
    assert "processes now: 1" in mode.text


def test_reports_no_mistake_for_a_correct_variant(subtests: pytest.Subtests) -> None:
    for make in [
        lambda: client(**{ACTIVE_THREAD_PERCENTAGE: "12.5", PINNED_MEMORY_LIMIT: "0=2G", VISIBLE_DEVICES: "0"}),
        lambda: client(**{PINNED_MEMORY_LIMIT: f"{GPU}=2G", VISIBLE_DEVICES: GPU[:12]}),
        lambda: of_daemon(environment={VISIBLE_DEVICES: GPU}),
        lambda: client(**{VISIBLE_DEVICES: "0,-1,7"}),
        *(partial(client, **{VISIBLE_DEVICES: hidden}) for hidden in HIDDEN),
        *(partial(of_job, hidden) for hidden in HIDDEN),
        lambda: with_gpu(with_private_daemon(healthy()), compute_mode="default"),
        lambda: of_daemon(environment={LOG_DIRECTORY: "/mps/log"}, container="c0ffee"),
        without_server_log,
        lambda: of_exporter(uid=0, capabilities=ALL_RIGHTS),
        lambda: healthy(config=configured(watchdog=Mode.ACT)),
        lambda: healthy(processes={CLIENT: process(shared_memory=OTHER_SHARED)}),
        lambda: healthy(processes={CLIENT: process(pid_namespaces=(CONTAINERS, NODES))}),
        lambda: healthy(private_tmp=None),
        in_tmp,
        with_attribution,
        lambda: with_attribution(exporter=exporter_process(capabilities=ALL_RIGHTS & ~WITHOUT)),
        lambda: of_exporter(capabilities=1 << Capability.SYS_PTRACE | ACTS),
        lambda: of_daemon(open_files=None),
        lambda: of_directory(log_fifo_mode=0o700),
        lambda: of_directory(pid_file_mode=0o744),
        lambda: of_directory(pid=None, pid_file_mode=None, problem="Permission denied"),
        lambda: replace(of_daemon(uid=1001), directories={DAEMON: directory(closed="/run")}),
        lambda: with_daemon(healthy(), log__sizes={"control.log": (256 << 20) - 1}),
        lambda: of_daemon(written=(f"{CONTROL_LOG}.1", CONTROL_LOG)),
        lambda: of_daemon(written=(f"{CONTROL_LOG}x",)),
        lambda: healthy(private_tmp={UNIT: True, "cuda-mps-exporter.service": True}),
        lambda: of_programs(version="unknown"),
        lambda: of_programs(version=None),
    ]:
        with subtests.test(make=make):
            assert found(make()) == []


def test_a_uuid_may_be_a_device_of_a_daemon_whose_devices_are_unknown() -> None:
    facts = client(**{PINNED_MEMORY_LIMIT: f"{GPU}=2G"})
    gpus = {**facts.node.gpus, OTHER_GPU: Gpu(reading=gpu_reading(gpu=OTHER_GPU, index=1))}
    facts = with_daemon(replace(facts, node=replace(facts.node, gpus=gpus)), runtime__devices={})

    assert "names no device" not in "".join(each.text for each in found(facts))


HIDDEN = ("10000", "-1", "", "NoDevFiles", "none", "void", "10000,0")
"""Values with which batch systems hide all GPUs from a job without GPUs."""


def of_job(visible: str) -> Facts:
    """A job has its own daemon, and no GPU."""
    facts = with_daemon(healthy(), declared__expected=False)
    return replace(facts, daemons=(daemon(environment={VISIBLE_DEVICES: visible}),))


def test_shows_no_directory_of_a_daemon_that_lacks_a_gpu_of_the_process() -> None:
    """A client sees only the GPUs of its daemon."""
    facts = with_daemon(bypassing(environment={}, pipe=None), runtime__devices={0: GPU})
    other = gpu_reading(beside=(BYPASSING,), gpu=OTHER_GPU, index=1, persistence_mode=True)
    both = replace(facts, node=reduced(other, start=facts.node).node)
    for present, shows in ((facts, True), (both, False)):
        (finding,) = (each for each in found(present) if each.problem.code == "process_bypassing")
        assert (bool(finding.commands), "GPUs of one daemon" in finding.remedy) == (shows, not shows)


def with_private_daemon(facts: Facts) -> Facts:
    return with_daemon(facts, runtime__last_process=DaemonProcess(at=AT, daemon=DAEMON, pid=CONTROL, uid=1002))


def test_the_compute_mode_that_excludes_other_users_is_no_advice_for_a_private_daemon() -> None:
    (finding,) = found(replace(bypassing(uid=1002), daemons=(daemon(uid=1002),)))
    assert "while no daemon ran" in finding.text
    assert "EXCLUSIVE_PROCESS" not in finding.text


def test_an_overwritten_environment_is_reported_and_nothing_follows_from_it() -> None:
    (finding,) = found(with_examined(bypassing(environment=None, pipe=None)))
    assert (finding.problem.code, finding.commands) == ("not_examined", ())
    assert "has overwritten its environment" in finding.text
    (unreadable,) = found(with_examined(bypassing(environment=None, pipe=None, shared_memory=None)))
    assert "cannot be read" in unreadable.text


def with_examined(facts: Facts) -> Facts:
    """Return the facts with what they lack of CUDA processes."""
    return replace(facts, not_examined=tuple(each for each in not_examined(facts) if each.area is Area.PROCESSES))


def test_no_command_changes_a_unit_that_runs_the_work_of_many() -> None:
    """A job without a unit of its own has a daemon."""
    for unit, number in [("train.service", 1), ("pbs.service", 0)]:
        facts = with_daemon(in_tmp(), runtime__unit=unit, declared__unit=None)
        (finding,) = found(replace(facts, private_tmp={UNIT: False, unit: True}))
        assert (finding.problem.code, len(finding.commands)) == ("unit_private_tmp", number)


def test_a_process_can_have_the_directory_of_a_namespace_with_protocol_3(subtests: pytest.Subtests) -> None:
    for path, pipe, container, words in [
        (f"{DAEMON}/shared/large", OTHER_PIPE, None, "started while no daemon ran"),
        (f"{DAEMON}/shared/larg", None, None, f"They were started with {DAEMON}/shared/larg,"),
        (f"{DAEMON}/../elsewhere", (9, 9), "c0ffee", f"They were started with {DAEMON}/../elsewhere,"),
        (f"{DAEMON}/shared/large", None, "c0ffee", f"In their container, {DAEMON}/shared/large is not"),
    ]:
        with subtests.test(path=path, pipe=pipe, container=container, words=words):
            own = process(BYPASSING, environment={PIPE_DIRECTORY: path}, pipe=pipe, container=container)
            facts = with_daemon(with_bypassing(healthy(), own), runtime__protocol=3)
            (finding,) = found(facts)
            assert words in finding.text


def test_names_the_usual_causes_of_servers_that_exit_early(subtests: pytest.Subtests) -> None:
    for facts, cause in [
        (with_gpu(healthy(), compute_processes=(GpuProcess(pid=BYPASSING),)), f"PID {BYPASSING} uses GPU 0"),
        (with_gpu(healthy(), memory_total_bytes=100 << 20, memory_used_bytes=97 << 20), "is full: 3 MiB are free"),
        (healthy(), ""),
    ]:
        with subtests.test(facts=facts, cause=cause):
            (finding,) = [each for each in found(crash_loop(facts)) if each.problem.code == "server_crash_loop"]
            assert f"6 in a row, the last one for UID 1001: {WORDS}. " in finding.text + ". "
            assert finding.facts[0] == "the last server exited 30 s ago"
            assert not cause or cause in finding.facts[-1]
            assert commands_of(finding)[0] == f"tail -n 30 {CONTROL_LOG}"


def test_the_worst_finding_comes_first_and_sets_the_exit_code() -> None:
    advice = {DAEMON: directory(pid_file_mode=0o666)}
    facts = healthy(directories=advice, programs=Programs(), exporter=exporter_process(capabilities=0))
    report = examine(facts)
    assert [finding.severity for finding in report.findings] == [CRITICAL, WARNING, INFO]
    assert report.exit_code == 2
    assert examine(healthy(exporter=exporter_process(capabilities=0))).exit_code == 1
    assert examine(healthy(directories=advice)).exit_code == 0
    assert examine(healthy(not_examined=(NotExamined(area=Area.UNITS, reason="hidden"),))).exit_code == 1


def test_a_check_that_lacks_facts_is_not_counted_as_one_that_found_nothing(subtests: pytest.Subtests) -> None:
    for make, area in [
        (log_to_a_pipe, Area.LOGS),
        (unreadable_log, Area.LOGS),
        (lambda: with_gpu(healthy(), problem=failure("Unknown Error")), Area.GPUS),
        (lambda: healthy(programs=Programs()), Area.PROGRAMS),
        (lambda: of_directory(problem="/run: Permission denied"), Area.DIRECTORIES),
        (lambda: of_exporter(is_service=False, unanswering="Permission denied"), Area.RIGHTS),
        (lambda: with_attribution(tried=False), Area.LAUNCHES),
        (lambda: of_daemon(environment=None), Area.DAEMONS),
        (lambda: healthy(processes={CLIENT: process(environment=None)}), Area.PROCESSES),
    ]:
        with subtests.test(area=area):
            facts = make()
            facts = replace(facts, not_examined=tuple(not_examined(facts)))
            report = examine(facts)
            assert [each.area for each in facts.not_examined] == [area]
            assert {area in check.needs for check in report.ok} == {False}
            assert {area in check.needs for check in report.unknown} <= {True}
            assert f"in full: {area}. {counted(len(report.unknown), 'check is', 'checks are')} incomplete" in " ".join(
                text_of(report_lines(report, facts)).split()
            )


def test_names_the_daemons_of_each_gpu() -> None:
    (finding,) = found(other_daemon_of_the_gpu())
    assert [fact.partition(": ")[2] for fact in finding.facts] == [f"{DAEMON} and /run/other"]
