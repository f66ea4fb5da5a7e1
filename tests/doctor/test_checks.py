"""Each check finds its mistake and no other; on a correct node, no check finds one."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exporter.config.settings import Attribution
from exporter.doctor.facts import (
    Area,
    ExporterProcess,
    Facts,
    LibcudaProbesFacts,
    Listener,
    NotExamined,
    Programs,
    Rotation,
)
from exporter.doctor.finding import Finding, Severity, report_text
from exporter.doctor.gather import CHECKS, examine, not_examined
from exporter.model.daemon import DaemonState, FailedStarts, NamedBy
from exporter.model.observation import GpuProcess, MigInstance
from exporter.model.problem import Problem, ProblemCode
from exporter.model.settings import (
    ACTIVE_THREAD_PERCENTAGE,
    LOG_DIRECTORY,
    PINNED_MEMORY_LIMIT,
    PIPE_DIRECTORY,
    VISIBLE_DEVICES,
    Mode,
)
from exporter.parse.proc import Capability
from tests.builders import CLIENT, GPU, OTHER_GPU, UNIT, failure
from tests.doctor.healthy import (
    ALL_RIGHTS,
    BYPASSING,
    CONTAINERS,
    DAEMON,
    LOGS,
    NODES,
    OTHER_PIPE,
    OTHER_SHARED,
    configured,
    daemon,
    directory,
    exporter_process,
    healthy,
    log,
    process,
    with_bypassing,
    with_daemon,
    with_gpu,
    with_problem,
)

ADVICE, WARNING, ERROR = Severity.ADVICE, Severity.WARNING, Severity.ERROR
TMP = "/tmp/nvidia-mps"
LONG = "/run/" + "x" * 90
LIBCUDA = "/usr/lib/x86_64-linux-gnu/libcuda.so.1"
ACTS = 1 << Capability.KILL | 1 << Capability.SETUID | 1 << Capability.SETGID
WORDS = "Failed to start : invalid argument"
WITHOUT = 1 << Capability.SYS_ADMIN | 1 << Capability.DAC_OVERRIDE


LOST = Problem(code=ProblemCode.GPU_LOST, detail="GPU is lost")
NOT_LISTED = Problem(code=ProblemCode.GPU_NOT_REPORTED)


def bypassing(**changes: Any) -> Facts:
    """Return facts with a bypassing process."""
    return with_bypassing(healthy(), process(BYPASSING, **changes))


def client(**variables: str) -> Facts:
    """Return facts with these variables of the client."""
    return healthy(processes={CLIENT: process(variables={PIPE_DIRECTORY: DAEMON} | variables)})


def on_second_gpu(limit: str, *, container: str | None = None, **variables: str) -> Facts:
    """Return facts of a daemon with two GPUs, and a client on the second one with this memory limit."""
    own = process(variables={PIPE_DIRECTORY: DAEMON, PINNED_MEMORY_LIMIT: limit} | variables, container=container)
    return with_daemon(healthy(processes={CLIENT: own}), runtime__devices={0: OTHER_GPU, 1: GPU})


def another_user_waits(**changes: Any) -> Facts:
    """Return facts of a client that waits until those of another user have exited."""
    facts = healthy(processes={BYPASSING: process(BYPASSING, uid=1002)}, **changes)
    waiting = frozenset({BYPASSING})
    return with_daemon(facts, connections__queued={BYPASSING: 1002}, connections__waiting=waiting)


def crash_loop(facts: Facts, ago: float = 30) -> Facts:
    """Return the facts after six servers of a user exited before they were ready, `ago` seconds ago."""
    at = facts.node.at - ago
    failed = FailedStarts(started_at=(at,) * 3, count=6, uid=1001, words=WORDS, last_exit_at=at, reported=True)
    return with_daemon(facts, connections__failed_starts=failed)


def ended(**changes: Any) -> Facts:
    """Return facts of a daemon that has ended."""
    facts = with_daemon(
        healthy(daemons=(), **changes), state=DaemonState.ABSENT, runtime__process=None, clients={}, servers={}
    )
    return replace(facts, processes={})


def in_tmp() -> Facts:
    """Return facts of a daemon in /tmp."""
    facts = with_daemon(healthy(), pipe_directory=TMP)
    own = daemon(variables={PIPE_DIRECTORY: TMP})
    return replace(facts, daemons=(own,), directories={DAEMON: directory(path=TMP)})


def other_daemon_of_the_gpu() -> Facts:
    facts = healthy()
    both = {**facts.node.daemons, "/run/other": replace(facts.node.daemons[DAEMON], name="/run/other")}
    return replace(
        facts,
        node=replace(facts.node, daemons=both),
        daemons=(daemon(), daemon(name="/run/other")),
        directories={},
    )


def on_a_mig_instance() -> Facts:
    """Return facts of a node whose daemon serves a MIG instance."""
    instance = MigInstance(parent=OTHER_GPU, gpu_instance=1, compute_instance=0)
    return with_daemon(with_gpu(healthy(), mig=instance), runtime__devices={0: GPU})


def with_attribution(exporter: ExporterProcess | None = None, **changes: Any) -> Facts:
    """Return facts of a node where launches are counted."""
    probes = LibcudaProbesFacts(**{"libraries": (LIBCUDA,)} | changes)
    process = exporter_process() if exporter is None else exporter
    return healthy(config=configured(attribution=Attribution.BPF), libcuda_probes=probes, exporter=process)


Mistake = tuple[str, Severity, str, Callable[[], Facts]]

MISTAKES: tuple[Mistake, ...] = (
    ("configuration-unusable", ERROR, "a typo", lambda: healthy(config_problem="log.levl: no such key")),
    (
        "history-not-writable",
        WARNING,
        "not its own",
        lambda: healthy(exporter=exporter_process(state_directory="/var/lib/e", state_problem="read-only")),
    ),
    ("control-program-unusable", ERROR, "not in PATH", lambda: healthy(programs=Programs())),
    (
        "control-program-unusable",
        ERROR,
        "cannot be run",
        lambda: healthy(programs=Programs(control="/c", server="/s", problem="exec format error")),
    ),
    (
        "server-program-missing",
        WARNING,
        "the control program alone",
        lambda: healthy(programs=Programs(control="/usr/bin/c", version="13000")),
    ),
    (
        "version-mismatch",
        WARNING,
        "an older installation",
        lambda: healthy(programs=Programs(control="/c", server="/s", version="12040")),
    ),
    ("daemon-outdated", WARNING, "upgraded under it", lambda: healthy(daemons=(daemon(outdated=True),))),
    (
        "driver-mismatch",
        ERROR,
        "upgraded, not rebooted",
        lambda: with_problem(healthy(), failure("Driver/library version mismatch", ProblemCode.DRIVER_MISMATCH)),
    ),
    (
        "driver-unreadable",
        ERROR,
        "no library",
        lambda: with_problem(healthy(), failure("Shared Library Not Found", ProblemCode.LIBRARY_MISSING)),
    ),
    (
        "no-gpu",
        WARNING,
        "none in the container",
        lambda: replace(healthy(), node=replace(healthy().node, gpus={})),
    ),
    ("gpu-lost", ERROR, "GPU is lost", lambda: with_gpu(healthy(), problem=LOST)),
    ("gpu-lost", ERROR, "GPU is lost", lambda: with_problem(healthy(), replace(LOST, subject="0"))),
    (
        "gpu-lost",
        ERROR,
        "GPU is lost",
        lambda: with_problem(
            healthy(daemons=(daemon(variables={VISIBLE_DEVICES: OTHER_GPU}),)),
            replace(LOST, subject="1"),
            one_gpu_remains=True,
        ),
    ),
    (
        "nvml-package-hidden",
        ERROR,
        "hides the module",
        lambda: with_problem(healthy(), Problem(code=ProblemCode.PACKAGE_CONFLICT, subject="pynvml")),
    ),
    ("gpu-lost", ERROR, "no longer lists", lambda: with_gpu(healthy(), problem=NOT_LISTED)),
    ("gpu-unreadable", ERROR, "lost", lambda: with_gpu(healthy(), problem=failure("GPU is lost"))),
    ("compute-mode-prohibited", ERROR, "", lambda: with_gpu(healthy(), compute_mode="prohibited")),
    ("compute-mode-default", ADVICE, "no bypassing process", lambda: with_gpu(healthy(), compute_mode="default")),
    ("mig", WARNING, "on", lambda: with_gpu(healthy(), mig_mode=True)),
    ("untried-on-hardware", ADVICE, "", on_a_mig_instance),
    ("pre-volta", WARNING, "Pascal", lambda: with_gpu(healthy(), compute_capability="6.1")),
    ("persistence-off", ADVICE, "", lambda: with_gpu(healthy(), persistence_mode=False)),
    ("gpu-not-there", ERROR, "index", lambda: healthy(daemons=(daemon(variables={VISIBLE_DEVICES: "0,4"}),))),
    ("gpu-not-there", ERROR, "UUID", lambda: healthy(daemons=(daemon(variables={VISIBLE_DEVICES: OTHER_GPU}),))),
    ("gpu-of-two-daemons", WARNING, "", other_daemon_of_the_gpu),
    (
        "no-daemon",
        WARNING,
        "none anywhere",
        lambda: replace(
            healthy(config=configured(), daemons=(), processes={}), node=replace(healthy().node, daemons={})
        ),
    ),
    ("daemon-absent", ERROR, "no pid file", lambda: ended(directories={})),
    ("daemon-hung", ERROR, "", lambda: with_daemon(healthy(), state=DaemonState.UNRESPONSIVE)),
    (
        "daemon-hung",
        ERROR,
        "stuck in the kernel",
        lambda: with_daemon(healthy(daemons=(), logs={}), state=DaemonState.UNRESPONSIVE),
    ),
    ("servers-exit-early", ERROR, "", lambda: crash_loop(healthy())),
    ("servers-exit-early", WARNING, "an hour ago", lambda: crash_loop(healthy(), ago=3600)),
    ("daemon-held", WARNING, "", lambda: with_daemon(healthy(), state=DaemonState.HELD)),
    (
        "daemon-not-expected",
        ADVICE,
        "",
        lambda: with_daemon(healthy(), declared__expected=False, declared__by=NamedBy.DISCOVERED),
    ),
    ("protocol-not-supported", WARNING, "", lambda: with_daemon(healthy(), runtime__protocol=4)),
    ("untried-on-hardware", ADVICE, "", lambda: with_daemon(healthy(), runtime__protocol=3)),
    ("few-open-files", ADVICE, "", lambda: healthy(daemons=(daemon(open_files=1024),))),
    ("socket-path-too-long", ERROR, "a daemon's", lambda: with_daemon(healthy(), pipe_directory=LONG)),
    ("socket-path-too-long", ERROR, "a client's", lambda: client(**{PIPE_DIRECTORY: LONG})),
    ("two-daemons", ERROR, "", lambda: healthy(daemons=(daemon(), daemon(own_pid=442)))),
    ("directory-closed", ERROR, "", lambda: healthy(directories={DAEMON: directory(closed="/run")})),
    ("directory-writable", WARNING, "", lambda: healthy(directories={DAEMON: directory(writable=True)})),
    ("pid-file-wrong", ERROR, "another PID", lambda: healthy(directories={DAEMON: directory(pid=1)})),
    ("pid-file-wrong", ERROR, "none", lambda: healthy(directories={DAEMON: directory(pid=None, pid_file_mode=None)})),
    ("pid-file-open", ADVICE, "", lambda: healthy(directories={DAEMON: directory(pid_file_mode=0o666)})),
    ("pid-file-open", ADVICE, "a group", lambda: healthy(directories={DAEMON: directory(pid_file_mode=0o664)})),
    ("log-fifo-open", WARNING, "", lambda: healthy(directories={DAEMON: directory(log_fifo_mode=0o777)})),
    ("unit-not-there", ERROR, "a typo", lambda: healthy(private_tmp={})),
    (
        "daemon-private-tmp",
        ERROR,
        "",
        lambda: replace(in_tmp(), private_tmp={UNIT: True}),
    ),
    (
        "exporter-private-tmp",
        ERROR,
        "",
        lambda: replace(
            in_tmp(),
            private_tmp={UNIT: False, "cuda-mps-exporter.service": True},
        ),
    ),
    ("pipe-directory-differs", ERROR, "no variable", lambda: bypassing(variables={}, pipe=None)),
    (
        "pipe-directory-differs",
        ERROR,
        "another directory",
        lambda: bypassing(variables={PIPE_DIRECTORY: "/run/old"}, pipe=OTHER_PIPE),
    ),
    (
        "private-tmp",
        ERROR,
        "",
        lambda: with_bypassing(
            in_tmp(), process(BYPASSING, variables={PIPE_DIRECTORY: TMP}, pipe=None, unit="train.service")
        ),
    ),
    ("container-without-directory", ERROR, "", lambda: bypassing(pipe=None, container="c0ffee")),
    ("process-bypassing", WARNING, "", bypassing),
    (
        "users-wait",
        WARNING,
        "",
        another_user_waits,
    ),
    (
        "shared-memory-differs",
        WARNING,
        "",
        lambda: with_daemon(
            healthy(processes={CLIENT: process(shared_memory=OTHER_SHARED)}),
            clients={},
            connections__queued={CLIENT: 1},
        ),
    ),
    (
        "pid-namespace-differs",
        WARNING,
        "a container for each",
        lambda: healthy(daemons=(daemon(pid_namespaces=(CONTAINERS, NODES)),)),
    ),
    (
        "exporter-pid-namespace",
        ADVICE,
        "all known",
        lambda: healthy(exporter=exporter_process(pid_namespaces=(CONTAINERS, NODES))),
    ),
    (
        "exporter-pid-namespace",
        WARNING,
        "a hidden daemon",
        lambda: replace(ended(exporter=exporter_process(pid_namespaces=(CONTAINERS,))), apart=True),
    ),
    (
        "exporter-pid-namespace",
        WARNING,
        "unknown processes",
        lambda: healthy(exporter=exporter_process(pid_namespaces=(CONTAINERS,)), processes={}),
    ),
    ("thread-percentage-wrong", ERROR, "0", lambda: client(**{ACTIVE_THREAD_PERCENTAGE: "0"})),
    ("thread-percentage-wrong", ERROR, "150", lambda: client(**{ACTIVE_THREAD_PERCENTAGE: "150"})),
    ("thread-percentage-wrong", ERROR, "nan", lambda: client(**{ACTIVE_THREAD_PERCENTAGE: "nan"})),
    (
        "thread-percentage-wrong",
        ERROR,
        "a daemon's",
        lambda: healthy(daemons=(daemon(variables={ACTIVE_THREAD_PERCENTAGE: "40%"}),)),
    ),
    (
        "memory-limit-without-effect",
        WARNING,
        "",
        lambda: healthy(daemons=(daemon(variables={PINNED_MEMORY_LIMIT: "0=2G"}),)),
    ),
    ("memory-limit-without-effect", WARNING, "a client's", lambda: client(**{PINNED_MEMORY_LIMIT: "0=900G"})),
    ("memory-limit-without-effect", ERROR, "no size", lambda: client(**{PINNED_MEMORY_LIMIT: "0=much"})),
    (
        "memory-limit-without-effect",
        WARNING,
        "the default",
        lambda: with_daemon(healthy(), default_limits__pinned_memory={0: 1 << 48}),
    ),
    (
        "memory-limit-without-effect",
        ERROR,
        "configured",
        lambda: healthy(config=configured(pinned_memory_limits=((9, 1 << 30),))),
    ),
    (
        "memory-limit-without-effect",
        ERROR,
        "not visible to the client",
        lambda: client(**{PINNED_MEMORY_LIMIT: "1=2G", VISIBLE_DEVICES: "0"}),
    ),
    ("memory-limit-without-effect", ERROR, "no device", lambda: client(**{PINNED_MEMORY_LIMIT: "1G"})),
    ("memory-limit-without-effect", ERROR, "bytes", lambda: client(**{PINNED_MEMORY_LIMIT: "85899345920MB"})),
    ("memory-limit-without-effect", ERROR, "quotes", lambda: client(**{PINNED_MEMORY_LIMIT: "\u201d0=1G\u201d"})),
    ("memory-limit-without-effect", ERROR, "another UUID", lambda: client(**{PINNED_MEMORY_LIMIT: "GPU-7=1G"})),
    ("memory-limit-without-effect", WARNING, "another GPU's", lambda: on_second_gpu("0=20G")),
    ("gpu-not-visible", WARNING, "ordinal", lambda: client(**{VISIBLE_DEVICES: "0,1"})),
    ("gpu-not-visible", WARNING, "UUID", lambda: client(**{VISIBLE_DEVICES: OTHER_GPU})),
    (
        "acts-without-restart",
        ERROR,
        "",
        lambda: with_daemon(healthy(config=configured(unit=None, watchdog=Mode.ACT)), declared__unit=None),
    ),
    (
        "acts-without-rights",
        WARNING,
        "",
        lambda: healthy(
            config=configured(watchdog=Mode.ACT), exporter=exporter_process(capabilities=1 << Capability.SYS_PTRACE)
        ),
    ),
    (
        "log-not-followed",
        WARNING,
        "",
        lambda: healthy(logs={DAEMON: (log(problem="Permission denied"),)}),
    ),
    (
        "log-directory-differs",
        WARNING,
        "",
        lambda: healthy(daemons=(daemon(variables={LOG_DIRECTORY: "/var/log/nvidia-mps"}),)),
    ),
    ("log-not-rotated", WARNING, "", lambda: healthy(logs={DAEMON: (log(renamed=f"{LOGS}/control.log.1"),)})),
    (
        "log-not-rotated",
        WARNING,
        "",
        lambda: healthy(rotations=(Rotation(path=f"{LOGS}/control.log", file="/etc/logrotate.d/x", truncates=False),)),
    ),
    ("log-not-rotated", ADVICE, "small", lambda: healthy(rotations=())),
    ("log-not-rotated", WARNING, "large", lambda: healthy(logs={DAEMON: (log(size=1 << 30),)})),
    (
        "ptrace-right-missing",
        WARNING,
        "",
        lambda: healthy(exporter=exporter_process(capabilities=1 << Capability.SYSLOG)),
    ),
    ("kernel-log-closed", ADVICE, "", lambda: healthy(exporter=exporter_process(kernel_log="it lacks CAP_SYSLOG"))),
    (
        "log-not-followed",
        WARNING,
        "",
        lambda: with_daemon(healthy(exporter=exporter_process(groups=frozenset({990}))), runtime__foreground=True),
    ),
    (
        "log-not-followed",
        WARNING,
        "to a pipe",
        lambda: with_daemon(
            healthy(logs={}), runtime__foreground=True, runtime__stdout_in_file=False, runtime__unit=None
        ),
    ),
    ("too-many-rights", ERROR, "", lambda: healthy(exporter=exporter_process(capabilities=ALL_RIGHTS))),
    (
        "service-not-identified",
        ADVICE,
        "",
        lambda: healthy(exporter=exporter_process(is_service=False, unanswering="Permission denied")),
    ),
    (
        "launches-not-counted",
        WARNING,
        "",
        lambda: with_attribution(
            exporter=exporter_process(capabilities=ALL_RIGHTS & ~WITHOUT & ~(1 << Capability.BPF))
        ),
    ),
    (
        "launches-not-counted",
        WARNING,
        "",
        lambda: with_attribution(refused="cannot make the BPF map: Function not implemented"),
    ),
    ("launches-not-counted", WARNING, "", lambda: with_attribution(libraries=())),
    (
        "launches-not-counted",
        WARNING,
        "",
        lambda: with_attribution(problems=("libcuda.so.1 of PID 7: it is no ELF file",)),
    ),
    (
        "port-taken",
        ERROR,
        "",
        lambda: healthy(listeners=(Listener(address=":10677", uid=33, is_service=False),)),
    ),
    (
        "configuration-unusable",
        ERROR,
        "",
        lambda: healthy(config=configured(web_config_file=Path("/etc/web.yml")), web_problem="no bcrypt hash"),
    ),
    (
        "not-examined",
        WARNING,
        "",
        lambda: healthy(not_examined=(NotExamined(area=Area.PORTS, reason="hidden", fix="Look as root"),)),
    ),
)


def found(facts: Facts) -> list[Finding]:
    return list(examine(facts).findings)


def test_accepts_one_log_directory_with_two_paths() -> None:
    other_path = daemon(variables={LOG_DIRECTORY: "/mps/log"}, logs=(1, 2))
    report = examine(healthy(daemons=(other_path,), configured_logs={DAEMON: (1, 2)}))
    assert "log-directory-differs" not in {finding.check.id for finding in report.findings}
    report = examine(healthy(daemons=(other_path,), configured_logs={DAEMON: (1, 3)}))
    assert "log-directory-differs" in {finding.check.id for finding in report.findings}


def test_reports_nothing_on_a_node_without_mistakes() -> None:
    report = examine(healthy())
    assert (report.findings, report.unknown, report.exit_code) == ((), (), 0)
    assert [check.id for check in report.ok] == [check.id for check in CHECKS]


def test_reports_the_mistake_and_nothing_else(subtests: pytest.Subtests) -> None:
    for id_, severity, make in [(id_, severity, make) for id_, severity, _, make in MISTAKES]:
        with subtests.test(id_=id_, severity=severity, make=make):
            assert [(finding.check.id, finding.severity) for finding in found(make())] == [(id_, severity)]


def test_reports_a_daemon_that_was_killed_by_its_pid_file() -> None:
    clean = ended(directories={DAEMON: directory(pid=None, pid_file_mode=None)})
    for facts, killed in ((ended(), True), (clean, False)):
        (finding,) = found(facts)
        assert finding.check.id == "daemon-absent"
        assert finding.what.endswith("shows that it was killed.") is killed

    assert [each.severity for each in found(with_daemon(ended(), declared__expected=False))] == [WARNING]
    assert found(with_daemon(clean, declared__expected=False)) == []


def test_reports_a_daemon_that_serves_only_another_user() -> None:
    facts = bypassing()
    owner = facts.node.daemons[DAEMON].runtime.process
    assert owner is not None
    facts = with_daemon(facts, runtime__process=replace(owner, uid=1002))
    assert [finding.check.id for finding in found(facts)] == ["daemon-of-another-user"]


def test_each_check_has_a_test() -> None:
    own_tests = {"daemon-of-another-user"}
    assert {id_ for id_, *_ in MISTAKES} | own_tests == {check.id for check in CHECKS}
    assert len({check.id for check in CHECKS}) == len(CHECKS)


def test_default_compute_mode_is_a_warning_with_bypassing_processes() -> None:
    facts = with_gpu(bypassing(variables={}, pipe=None), compute_mode="default")
    (mode,) = [finding for finding in found(facts) if finding.check.id == "compute-mode-default"]
    assert mode.severity is WARNING
    assert "processes now: 1." in mode.what


def test_reports_no_mistake_for_a_correct_variant(subtests: pytest.Subtests) -> None:
    for make in [
        lambda: with_gpu(client(**{PINNED_MEMORY_LIMIT: "0=2G"}), memory_total_bytes=2 << 30),
        lambda: client(**{ACTIVE_THREAD_PERCENTAGE: "12.5", PINNED_MEMORY_LIMIT: "0=2G", VISIBLE_DEVICES: "0"}),
        lambda: client(**{VISIBLE_DEVICES: GPU[:12]}),
        lambda: healthy(daemons=(daemon(variables={VISIBLE_DEVICES: GPU}),)),
        lambda: healthy(listeners=(Listener(address=":10677", uid=990, is_service=True),)),
        lambda: healthy(exporter=exporter_process(uid=0, capabilities=ALL_RIGHTS)),
        lambda: healthy(config=configured(watchdog=Mode.ACT)),
        lambda: healthy(processes={CLIENT: process(shared_memory=OTHER_SHARED)}),
        lambda: healthy(processes={CLIENT: process(pid_namespaces=(CONTAINERS, NODES))}),
        lambda: healthy(private_tmp=None),
        lambda: healthy(logs={DAEMON: (log(path="/proc/9/root/log/control.log"),)}),
        in_tmp,
        with_attribution,
        lambda: with_attribution(exporter=exporter_process(capabilities=ALL_RIGHTS & ~WITHOUT)),
        lambda: healthy(exporter=exporter_process(capabilities=1 << Capability.SYS_PTRACE | ACTS)),
        lambda: with_daemon(another_user_waits(), clients={}),
        lambda: another_user_waits(daemons=(daemon(arguments=("nvidia-cuda-mps-control", "-d", "-M")),)),
    ]:
        with subtests.test(make=make):
            assert found(make()) == []


def of_protocol_3(facts: Facts) -> Facts:
    servers = {pid: replace(each, name="uid_1001") for pid, each in facts.node.daemons[DAEMON].servers.items()}
    return with_daemon(facts, runtime__protocol=3, servers=servers)


def test_a_process_can_have_the_directory_of_a_namespace(subtests: pytest.Subtests) -> None:
    for path, pipe, container, expected in [
        (f"{DAEMON}/shared/large", OTHER_PIPE, None, "process-bypassing"),
        ("/mps/shared/large", OTHER_PIPE, "c0ffee", "process-bypassing"),
        (f"{DAEMON}/shared/larg", None, None, "pipe-directory-differs"),
        (f"{DAEMON}/../elsewhere", (9, 9), "c0ffee", "pipe-directory-differs"),
        (f"{DAEMON}/shared/large", None, "c0ffee", "container-without-directory"),
        (f"{DAEMON}/shared/large", (9, 9), "c0ffee", "container-without-directory"),
    ]:
        with subtests.test(path=path, pipe=pipe, container=container, expected=expected):
            node = healthy(daemons=(daemon(namespaces=frozenset({OTHER_PIPE})),))
            facts = with_bypassing(
                node, process(BYPASSING, variables={PIPE_DIRECTORY: path}, pipe=pipe, container=container)
            )
            assert [finding.check.id for finding in found(facts)] == [expected]


def test_a_client_whose_gpu_has_a_limit_is_correct(subtests: pytest.Subtests) -> None:
    for facts in [
        on_second_gpu("0=20G,1=20G"),
        on_second_gpu("0=20G", container="c0ffee"),
        on_second_gpu(f"{GPU}=20G"),
        on_second_gpu("0=20G", **{VISIBLE_DEVICES: "1"}),
        with_daemon(on_second_gpu("0=20G"), default_limits__pinned_memory={1: 1 << 30}),
    ]:
        with subtests.test(facts=facts):
            assert "memory-limit-without-effect" not in {each.check.id for each in found(facts)}


def test_names_the_usual_causes_of_servers_that_exit_early(subtests: pytest.Subtests) -> None:
    for facts, cause in [
        (healthy(directories={DAEMON: directory(closed="/run/nvidia")}), "cannot enter /run/nvidia: see"),
        (healthy(daemons=(daemon(outdated=True),)), "have different versions"),
        (healthy(programs=Programs(control="/c", server="/s", version="12040")), "have different versions"),
        (with_gpu(healthy(), compute_capability="6.1"), "is older than Volta."),
        (
            with_gpu(healthy(daemons=(daemon(container="c0ffee"),)), compute_capability="6.1"),
            "is older than Volta, and the daemon is in a container.",
        ),
        (with_gpu(healthy(), compute_processes=(GpuProcess(pid=BYPASSING),)), f"PID {BYPASSING} uses GPU 0"),
        (with_gpu(healthy(), problem=failure("GPU is lost")), "has an error, and may need a reset."),
        (healthy(xids={GPU: 79}), "has an error, and may need a reset (Xid 79 since the boot)."),
        (healthy(exporter=exporter_process(kernel_log="no")), "was found. The kernel log was not read for Xids."),
        (with_gpu(healthy(), memory_total_bytes=100 << 20, memory_used_bytes=97 << 20), "is full: 3 MiB are free"),
        (healthy(), "None of the usual causes was found."),
    ]:
        with subtests.test(facts=facts, cause=cause):
            (finding,) = [each for each in found(crash_loop(facts)) if each.check.id == "servers-exit-early"]
            assert f"6 in a row, the last one for UID 1001: {WORDS}. That was 30 s ago." in finding.what
            assert cause in finding.what
            assert finding.commands == (f"tail -n 30 {LOGS}/control.log",)


LIMIT_OF_SERVER = "server set uid_1001 --pinned-memory-limit=2G"


@pytest.mark.parametrize(
    ("facts", "id_", "command"),
    [
        (
            healthy(daemons=(daemon(variables={PINNED_MEMORY_LIMIT: "0=2G"}),)),
            "memory-limit-without-effect",
            LIMIT_OF_SERVER,
        ),
        (client(**{PINNED_MEMORY_LIMIT: "0=900G"}), "memory-limit-without-effect", LIMIT_OF_SERVER),
        (
            client(**{PINNED_MEMORY_LIMIT: "1=2G", VISIBLE_DEVICES: "0"}),
            "memory-limit-without-effect",
            "device list --format=csv",
        ),
    ],
    ids=["in the daemon's environment", "beyond the device", "without a device"],
)
def test_shows_commands_of_protocol_3_to_a_daemon_that_uses_it(facts: Facts, id_: str, command: str) -> None:
    (shown,) = [each for each in found(of_protocol_3(facts)) if each.check.id == id_]
    assert shown.commands == (f"CUDA_MPS_PIPE_DIRECTORY={DAEMON} nvidia-cuda-mps-control {command}",)


def test_users_do_not_wait_for_each_other_with_protocol_3() -> None:
    assert "users-wait" not in {each.check.id for each in found(of_protocol_3(another_user_waits()))}


def test_checks_of_an_area_that_was_not_examined_are_unknown() -> None:
    report = examine(healthy(not_examined=(NotExamined(area=Area.GPUS, reason="NVML hangs", reported=True),)))
    needing = {check.id for check in CHECKS if Area.GPUS in check.needs}
    assert {check.id for check in report.unknown} == needing
    assert not needing & {check.id for check in report.ok}


def test_merges_equal_findings_of_several_processes() -> None:
    processes = (process(pid, variables={}, pipe=None) for pid in (BYPASSING, BYPASSING + 1))
    (finding,) = found(with_bypassing(healthy(), *processes))
    assert [place.split()[1] for place in finding.where] == ["700", "701"]


def test_the_worst_finding_comes_first_and_sets_the_exit_code() -> None:
    facts = healthy(rotations=(), programs=Programs(), exporter=exporter_process(capabilities=0))
    report = examine(facts)
    assert [finding.severity for finding in report.findings] == [ERROR, WARNING, ADVICE]
    assert report.exit_code == 2
    assert examine(healthy(exporter=exporter_process(capabilities=0))).exit_code == 1
    assert examine(healthy(rotations=())).exit_code == 0


@pytest.mark.parametrize(
    ("changed", "area"),
    [
        (
            with_daemon(healthy(logs={}), runtime__foreground=True, runtime__stdout_in_file=False, runtime__unit=None),
            Area.LOGS,
        ),
        (healthy(logs={DAEMON: (log(problem="Permission denied"),)}), Area.LOGS),
        (with_gpu(healthy(), problem=failure("GPU is lost")), Area.GPUS),
    ],
    ids=["a log in a pipe", "an unreadable log", "an unreadable GPU"],
)
def test_a_check_that_lacks_facts_is_not_counted_as_one_that_found_nothing(changed: Facts, area: Area) -> None:
    facts = replace(changed, not_examined=tuple(not_examined(changed)))
    report = examine(facts)

    assert [each.area for each in facts.not_examined] == [area]
    assert [check.id for check in report.ok if area in check.needs] == []
    assert {"users-wait"} <= {check.id for check in report.unknown} if area is Area.LOGS else report.unknown
    assert f"in full: {area}. {len(report.unknown)} checks are incomplete" in report_text(report, facts)
