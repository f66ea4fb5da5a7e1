"""What `status` shows: one table for a person, the same as JSON for a program, and an exit code."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exporter.model.daemon import DaemonState
from exporter.model.incident import IncidentEnd, IncidentKind
from exporter.model.node import Node
from exporter.report.document import ManualStep
from exporter.report.document_parts import Severity
from exporter.report.finding import Finding
from exporter.report.incident_status import leading, likelihood, verdict
from exporter.report.node_findings import daemon_findings
from exporter.report.node_status import MOST_IN_LINE, document_of, status_document, summary_line
from exporter.report.status_text import (
    MOST_FACTS,
    MOST_FINDINGS,
    PACKAGE,
    body,
    counts_of,
    finding_lines,
    headline,
    modes,
    only_daemon,
)
from exporter.report.text import Line, Style, local_time, text_of, zone_text
from exporter.view import StatusInput, View
from exporter.watchdog.context import DaemonPolicy, Policy
from exporter.watchdog.evaluation import evaluate
from tests.builders import (
    AT,
    CLIENT,
    CONTAINER,
    CONTEXT_BYTES,
    CONTROL,
    DAEMON,
    GPU,
    GPU_BYTES,
    MIB,
    OTHER_GPU,
    POD,
    SERVER,
    SLUID,
    at_work,
    blocked_recovery,
    circuit_open,
    control_log,
    daemon_down,
    daemon_process,
    fault,
    full,
    gpu_lost,
    gpu_reading,
    idle,
    limited,
    look,
    no_daemon,
    no_nvml,
    node,
    owned,
    probe,
    process,
    reduced,
    servers,
    silence,
    three_clients,
    with_fields,
)
from tests.incidents.values import incident, suspect
from tests.status import as_json, commands_of, status_json, status_table

THREE_CLIENTS = """\
DAEMON           SERVER  STATE      PID  USER   COMMAND      GPU    MEMORY  DOMAIN
/tmp/nvidia-mps     513  active     600  alice  train.py     0    1540 MiB  A
/tmp/nvidia-mps     513  active     600  alice  train.py     1     700 MiB  A
/tmp/nvidia-mps     513  active     601  bob    vllm         0    2564 MiB  A
/tmp/nvidia-mps     513  active     602  alice  eval.py      1    4612 MiB  A
none                  -  bypassing  801  carol  jupyter-lab  1    1024 MiB  -
domain A: 3 clients on GPUs 0 and 1 fail together: a fatal fault of one ends all
  joined by 600 (train.py) on GPUs 0 and 1; a daemon for each GPU separates them; a client then has one GPU
sharing of GPU 0: 2 clients hold 3 % of its memory; its SM time is unknown
  room for an unknown number of clients like these: 46 by client slots, unknown by memory, unknown by SM time
sharing of GPU 1: 2 clients hold 4 % of its memory; its SM time is unknown
  room for an unknown number of clients like these: 46 by client slots, unknown by memory, unknown by SM time
SM time by client is not known: start the exporter with --attribution=bpf
"""

IDLE = """\
DAEMON           SERVER  STATE   PID  USER  COMMAND  GPU  MEMORY
/tmp/nvidia-mps     513  active    -  root  -        -         -
"""

WAITING = """\
warning: Clients of MPS daemon /tmp/nvidia-mps wait for another user's clients to exit: 1 client
  A server serves one user at a time. The waiting clients hang, without an error, until the last client of the current \
user has exited.
  Affected: 1 client
  - PID 601 (UID 1000)
  Details:
  - PID 600 occupies the server, connected for 0 ms
  What to do: Wait, or end the current user's clients. To keep users apart, give each user a node or a daemon. If \
users may share faults and memory, start the daemon with -multiuser-server.
  See /runbooks/CudaMpsClientsWaiting.md

DAEMON           SERVER  STATE    PID  USER      COMMAND  GPU  MEMORY
/tmp/nvidia-mps     513  active   600  -         -        -         -
/tmp/nvidia-mps       -  waiting  601  UID 1000  -        -         -
"""

DEAD = """\
CRITICAL: MPS daemon /tmp/nvidia-mps has been down for 10 s, 3 clients ended with it
  The control daemon does not run, and no operator stopped it. Any clients ended with it. Unless the GPU's \
compute mode is EXCLUSIVE_PROCESS, new CUDA processes run without MPS and without limits, and get no error. In that \
mode, one of them has the GPU, and all others fail.
  Affected: 3 clients ended
  - PID 600 (train.py of alice)
  - PID 601 (vllm of bob)
  - PID 602 (eval.py of alice)
  Caution: Do not start CUDA programs before the daemon: they would run without MPS and without limits.
  What to do:
  1. Start the daemon. This ends no client.
     CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps CUDA_MPS_LOG_DIRECTORY=/tmp/nvidia-mps/log nvidia-cuda-mps-control -d
  2. Restart the clients that ended, unless they restart by themselves.
  3. End and restart what bypasses MPS: PID 801 (jupyter-lab of carol).
  4. Find the cause in the last lines of the daemon's logs.
     tail -n 30 /tmp/nvidia-mps/log/control.log
  See /runbooks/CudaMpsDaemonDown.md

warning: CUDA processes bypass MPS on GPU 1: PID 801 (jupyter-lab of carol)
  This may follow from another problem: daemon down.
  CUDA processes run on a GPU that MPS serves, but not through MPS. No limit applies to them, and MPS clients wait \
while they compute.
  Affected: 1 process without limits, and the MPS clients of the same GPUs
  - PID 801 (jupyter-lab of carol) on GPU 1 (1024 MiB), for 15 s
  They do not change to MPS while they run.
  What to do:
  1. Find out why they bypass MPS.
     cuda-mps-exporter doctor
  2. Restart the processes with CUDA_MPS_PIPE_DIRECTORY set to the daemon's directory.
     export CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps
  See /runbooks/CudaMpsProcessBypassing.md

441-3b9b0498: death of daemon /tmp/nvidia-mps: down for 10 s
  Began      LOST_AT (1970-01-12T13:46:45.000Z), 10 s ago
  GPUs       GPU-1efa3f60-b0ba-115c-7d58-bd5711d3de4b
             GPU-6edbf013-6106-5444-db3f-e433a41888b9
  Affected   3 clients ended:
             PID 600 (train.py of alice), 1540 MiB on GPU-1efa3f60, 700 MiB on GPU-6edbf013
             PID 601 (vllm of bob), 2564 MiB on GPU-1efa3f60
             PID 602 (eval.py of alice), 4612 MiB on GPU-6edbf013
  Restart    these clients, unless they restart by themselves

DAEMON           SERVER  STATE      PID  USER   COMMAND      GPU    MEMORY
/tmp/nvidia-mps       -  down         -  -      -            -           -
none                  -  bypassing  801  carol  jupyter-lab  1    1024 MiB
"""


def waiting() -> Node:
    """A second user's client waits for the first user's to leave."""
    lines = control_log(
        "NEW CLIENT 601 from user 1000: Server is not ready, push client to pending list",
        f"Server {SERVER} has 2 active worker threads. Server will not shutdown.",
    )
    return reduced(*at_work(CLIENT), *lines).node


class TestTable:
    """One row for each client and GPU; then what could not be seen."""

    @pytest.mark.parametrize(
        ("scene", "table"),
        [(idle, IDLE), (waiting, WAITING), (daemon_down, DEAD)],
        ids=("idle", "waiting", "dead"),
    )
    def test_renders_a_small_node(self, scene: Callable[[], Node], table: str) -> None:
        lost_at = f"{local_time(AT + 5)} {zone_text(AT + 5).split()[0]}"
        assert status_table(scene()).replace(PACKAGE, "").replace(lost_at, "LOST_AT") == table

    def test_names_a_runbook_that_exists_where_the_command_is_installed(self) -> None:
        (path,) = re.findall(r"^  See (.*)$", status_table(waiting()), re.MULTILINE)
        assert Path(path).read_text().startswith("# CudaMpsClientsWaiting\n")

    def test_shows_clients_after_the_problems(self) -> None:
        problems, _, tables = status_table(three_clients()).rpartition("\n\n")
        assert tables == THREE_CLIENTS
        assert [line for line in problems.splitlines() if line.startswith("warning: ")] == [
            f"warning: {each.text}" for each in document_of(three_clients()).findings
        ]

    def test_shows_a_column_for_workloads(self) -> None:
        """In few words, so that a row still fits 100 columns."""
        lines = status_table(owned()).splitlines()[:10]
        column = lines[0].index("WORKLOAD")
        assert [line[column : column + 24].rstrip() for line in lines[1:]] == [
            "pod train-0",
            "pod train-0",
            "pod train-0",
            "job 42",
            f"job {SLUID}",
            f"container {CONTAINER[:12]}",
            "vllm@llama\\x2d70b.ser…",
            "-",
            "-",
        ]
        assert max(map(len, lines)) <= 100
        assert "WORKLOAD" not in status_table(three_clients())

    def test_reports_that_no_daemon_is_expected(self) -> None:
        """An empty table would look like a defect."""
        present = reduced(no_daemon(), start=node(DAEMON, expected=False)).node
        assert status_table(present).endswith("\n\nNo MPS control daemon is known, and none is expected.\n")

    def test_lists_all_clients_of_a_full_server(self) -> None:
        """A person may want to see them all."""
        rows = [line for line in status_table(full()).splitlines() if line.startswith(DAEMON)]
        assert len(rows) == 48

    def test_shows_faults_and_unresponsive_daemons_as_states(self) -> None:
        faulted = reduced(*at_work(CLIENT), *fault()).node
        assert " fault " in status_table(faulted)
        hung = reduced(*at_work(CLIENT), silence(at=AT + 5), silence(at=AT + 10)).node
        assert " unresponsive " in status_table(hung)

    def test_reports_collection_errors(self) -> None:
        """No old number poses as a present one."""
        table = status_table(no_nvml())
        assert "nvml: NVML: NVML is not there. Check the driver with nvidia-smi\n" in table
        assert "MiB" not in table

    def test_shows_nothing_of_a_lost_gpu(self) -> None:
        """What it held then is not what it holds."""
        table = status_table(gpu_lost())
        assert "1540 MiB" in table
        assert "4612 MiB" not in table
        assert "bypassing" not in table


class TestJson:
    """The same as one object."""

    def test_limits_of_a_server(self) -> None:
        """What each of its clients may have of a GPU."""
        (server,) = status_json(limited())["daemons"][0]["servers"]
        assert server["active_thread_ratio"] == 0.5
        assert server["pinned_memory_limit_bytes"] == {OTHER_GPU: 2 << 30}

    def test_renders_a_small_node(self) -> None:
        used = (1 << 30) + CONTEXT_BYTES
        who = process(ticks=36, cgroup="0::/system.slice/train.service\n")
        present = reduced(*at_work(CLIENT), daemon_process(), who, gpu_reading([CLIENT]), look()).node
        shown = status_json(present)
        (daemon,), (gpu,) = shown["daemons"], shown["gpus"]
        (server,) = daemon["servers"]
        assert list(shown)[:4] == ["version", "severity", "summary", "findings"]
        assert (shown["at"], shown["severity"], shown["findings"]) == (AT, "well", [])
        assert (daemon["name"], daemon["state"], daemon["label"], daemon["pid"]) == (DAEMON, "up", "up", CONTROL)
        assert (server["pid"], server["state"], server["clients_limit"]) == (SERVER, "active", 48)
        assert server["clients"] == [
            {
                "pid": CLIENT,
                "user": "alice",
                "command": "train.py",
                "workload": {"kind": "unit", "name": "train.service"},
                "pod": None,
                "client": f"{CLIENT}-10",
                "uid": 1001,
                "unit": "train.service",
                "container": None,
                "pod_uid": None,
                "namespace": None,
                "job_manager": None,
                "job_id": None,
                "memory_used_bytes": {GPU: used},
                "connected_at": AT,
                "gpus": [GPU],
                "failure_domain": "A",
                "kernels": [],
                "kernels_problem": None,
                "streams": None,
            }
        ]
        assert (gpu["uuid"], gpu["number"], gpu["name"], gpu["mode"]) == (GPU, "0", "NVIDIA H200", "mps")
        assert (gpu["memory_used_bytes"], gpu["memory_total_bytes"]) == (used + 66 * MIB, GPU_BYTES)
        assert [(each["pid"], each["role"]) for each in gpu["processes"]] == [(CLIENT, "client"), (SERVER, "server")]
        assert [(each["name"], each["failed"], each["reasons"]) for each in shown["collectors"]] == [
            ("nvml", False, [])
        ]

    def test_workloads_of_clients(self) -> None:
        """As the labels of their info have it."""
        (server,) = status_json(owned())["daemons"][0]["servers"]
        by_pid = {client["pid"]: client for client in server["clients"]}
        assert (by_pid[600]["pod_uid"], by_pid[600]["pod"], by_pid[600]["namespace"]) == (POD, "train-0", "team-a")
        assert (by_pid[600]["container"], by_pid[604]["container"]) == (CONTAINER, CONTAINER)
        assert (by_pid[602]["job_id"], by_pid[603]["workload"]["name"]) == ("42", SLUID)
        assert by_pid[607]["unit"] == "user@1001.service"
        assert by_pid[607]["workload"] == {"kind": "user", "name": "alice"}

    def test_waiting_clients_and_bypassing_processes(self) -> None:
        assert [each["pid"] for each in status_json(waiting())["daemons"][0]["waiting"]] == [601]
        bypassing = [
            [each["pid"] for each in gpu["processes"] if each["role"] == "bypassing"]
            for gpu in status_json(three_clients())["gpus"]
        ]
        assert bypassing == [[], [801]]

    def test_collection_errors(self) -> None:
        shown_of = status_json(no_nvml())
        (nvml,) = [each for each in shown_of["collectors"] if each["name"] == "nvml"]
        (problem,) = nvml["reasons"]
        assert (problem["code"], problem["parameters"]["detail"]) == ("driver_error", "NVML is not there")
        assert problem["text"] == "NVML: NVML is not there. Check the driver with nvidia-smi"
        assert [(gpu["problem"], gpu["memory_used_bytes"]) for gpu in shown_of["gpus"]] == [(problem, None)] * 2
        clients = shown_of["daemons"][0]["servers"][0]["clients"]
        assert [client["memory_used_bytes"] for client in clients] == [{}, {}, {}]

    def test_lost_gpu_has_its_problem(self) -> None:
        """The other one has none."""
        gpus = {gpu["uuid"]: gpu["problem"] for gpu in status_json(gpu_lost())["gpus"]}
        assert gpus[GPU] is None
        assert gpus[OTHER_GPU]


class TestLine:
    """For the service manager."""

    def test_renders_one_line(self) -> None:
        """What is up, who is there, and the problems that `status` has too."""
        assert summary_line(View(idle())) == "1 of 1 daemons up, 0 clients"
        for present in (three_clients(), daemon_down(), no_nvml()):
            found = document_of(present).findings
            assert summary_line(View(present)) == "; ".join((counts_of_node(present), *(each.text for each in found)))

    def test_counts_problems_that_are_not_shown(self) -> None:
        names = [f"/run/{number}" for number in range(20)]
        line = summary_line(View(reduced(look(), start=node(*names)).node))
        assert line.endswith(f"; {20 - MOST_IN_LINE} more problems")


def counts_of_node(present: Node) -> str:
    """Return the numbers of daemons and clients."""
    return ", ".join(document_of(present).summary.split("; ")[0].split(", ")[:2])


# The head of `status`: whether all is well, who is there, and what is the matter.


def words(lines: list[Line]) -> list[str]:
    return [line.text for line in lines]


def test_headline_has_the_severity_and_the_numbers() -> None:
    assert words(list(headline(document_of(idle(), Policy())))) == [
        "well: 1 of 1 daemons up, 0 clients, 1 GPU; watchdog observes"
    ]
    assert words(list(headline(document_of(three_clients())))) == [
        "warning: 1 of 1 daemons up, 3 clients, 2 GPUs",
        "  CUDA processes bypass MPS on GPU 1: PID 801 (jupyter-lab of carol)",
        f"  Exporter cannot read a log of MPS daemon {DAEMON}: server.log cannot be read: Permission denied",
    ]
    assert words(list(headline(document_of(blocked_recovery()))))[:2] == [
        "CRITICAL: 1 of 1 daemons up, 3 clients, 2 GPUs; 3 faults in the last hour",
        f"  MPS server 513 of {DAEMON} has been in FAULT for 0 ms; PID 601 blocks recovery; suspect: likely PID 600",
    ]


def test_severity_has_a_word_and_a_style() -> None:
    first, grave, warned = headline(document_of(daemon_down()))
    assert (first.pieces[0].text, first.pieces[0].style) == ("CRITICAL", Style.ERROR)
    assert (grave.has(Style.ERROR), warned.has(Style.WARNING)) == (True, True)
    assert headline(document_of(idle()))[0].pieces[0].style is Style.OK


def test_counts_findings_that_are_not_shown() -> None:
    document = document_of(three_clients())
    many = replace(document, findings=document.findings * 10)
    lines = words(list(headline(many)))
    assert (len(lines), lines[-1]) == (1 + MOST_FINDINGS + 1, f"  and {20 - MOST_FINDINGS} more")
    assert f"\n  and {20 - MOST_FINDINGS} more\n" in text_of(body(many))


def test_has_one_finding_for_many_daemons_with_one_cause() -> None:
    (found,) = document_of(reduced(look(), start=node(*(f"/run/{number}" for number in range(20)))).node).findings
    assert len(found.daemons) == 20
    assert found.text == "The state of MPS daemon /run/0 is not known yet; the same applies to 19 more daemons"
    lines = [line.text for line in finding_lines(found)]
    assert lines[2:4] == [f"  - The state of MPS daemon /run/{number} is not known yet" for number in (1, 2)]
    assert lines[10] == "  - and 11 more"
    assert len(found.steps) == 1


# Who may have done it, in words that are no surer than the evidence.


def test_a_confidence_has_a_word(subtests: pytest.Subtests) -> None:
    for confidence, word in [
        (1.0, "very likely"),
        (0.8, "very likely"),
        (0.79, "likely"),
        (0.5, "likely"),
        (0.2, "possibly"),
        (0.1, "unlikely"),
    ]:
        with subtests.test(confidence=confidence, word=word):
            assert likelihood(confidence) == word


def test_names_the_leading_suspect() -> None:
    suspects = (suspect(600, 0.7), suspect(601, 0.15), suspect(602, 0.15))

    assert verdict(incident(suspects=suspects)) == "likely PID 600 (train.py of alice)"


def test_names_a_few_equal_leaders() -> None:
    suspects = (suspect(600, 0.4), suspect(601, 0.4), suspect(602, 0.2))

    assert verdict(incident(suspects=suspects)).startswith("very likely one of PID 600 (")
    assert [each.client.pid for each in leading(incident(suspects=suspects))] == [600, 601]


@pytest.mark.parametrize(
    "suspects",
    [
        (),
        (suspect(600, 0.1),),
        (suspect(600, 0.5), suspect(601, 0.5)),
        (*(suspect(pid, 0.24) for pid in range(600, 604)), suspect(700, 0.04)),
    ],
    ids=("no suspects", "hardly", "either", "too many alike"),
)
def test_unknown_if_no_suspect_leads(suspects: tuple[object, ...]) -> None:
    assert verdict(incident(suspects=suspects)).startswith("unknown: ")


def test_hardware_fault_has_no_suspect() -> None:
    suspects = (suspect(600, 0.9),)

    assert verdict(incident(kind=IncidentKind.HARDWARE, suspects=suspects)) == "none: the hardware failed"
    assert not leading(incident(kind=IncidentKind.HARDWARE, suspects=suspects))


# `status` of one daemon alone.


def two_daemons() -> Node:
    return reduced(*at_work(700, server=514, daemon="/run/other"), start=three_clients()).node


def test_shows_one_daemon() -> None:
    present = replace(two_daemons(), incidents=blocked_recovery().incidents)
    alone = as_json(only_daemon(document_of(present), "/run/other"))
    assert [each["name"] for each in alone["daemons"]] == ["/run/other"]
    roles = [process["role"] for gpu in alone["gpus"] for process in gpu["processes"]]
    assert (alone["incidents"], "bypassing" in roles) == ([], False)
    answer = only_daemon(document_of(present), DAEMON)
    assert len(answer.incidents) == len(present.incidents) > 0


def test_severity_is_that_of_one_daemon() -> None:
    present = reduced(
        start=replace(daemon_down(), daemons={**two_daemons().daemons, DAEMON: daemon_down().daemons[DAEMON]})
    ).node
    assert document_of(present).severity is Severity.CRITICAL
    assert only_daemon(document_of(present), "/run/other").severity is Severity.WELL


# `status` with a control program that hangs, and with a blocked log.


UNIT = Policy(daemon_policies={DAEMON: DaemonPolicy(unit="nvidia-cuda-mps.service")})
COMMAND = Policy(daemon_policies={DAEMON: DaemonPolicy(command=("nvidia-cuda-mps-control", "-d"))})


def found(node: Node, policy: Policy) -> list[Finding]:
    judged, _, _ = evaluate(node, policy, at=node.at, chance=0.0)
    return [replace(each, at=judged.at) for each in daemon_findings(judged, judged.at, policy)]


def hung_program() -> Node:
    seen = (silence(at=AT + 10), probe(True, at=AT + 10.1), silence(at=AT + 20), probe(True, at=AT + 20.1))
    return reduced(*seen, start=three_clients()).node


def blocked() -> Node:
    seen = (servers(513, at=AT + 10), look("log", at=AT + 16), servers(513, at=AT + 20), look("log", at=AT + 26))
    return reduced(*seen, start=three_clients()).node


HUNG_PROGRAM = "Find out why nvidia-cuda-mps-control hangs: run it by hand. Do not restart the daemon."


def test_reports_a_hung_control_program_with_a_command_that_times_out() -> None:
    (trouble,) = found(hung_program(), UNIT)
    assert trouble.severity is Severity.WARNING
    assert trouble.text == (
        "The control program has not answered for MPS daemon /tmp/nvidia-mps for 10 s, but the daemon accepts "
        "connections"
    )
    assert trouble.remedy == HUNG_PROGRAM
    assert commands_of(trouble) == (
        'echo "get_server_list" | CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps timeout 10 nvidia-cuda-mps-control',
    )


def test_advises_against_a_restart_without_a_command_too() -> None:
    node = hung_program()
    unwritable = replace(node.daemons[DAEMON], pipe_directory="/tmp/two\nlines")
    (trouble,) = found(replace(node, daemons={DAEMON: unwritable}), UNIT)
    assert trouble.remedy == HUNG_PROGRAM
    assert commands_of(trouble) == ()


def test_repairs_a_blocked_log_through_the_unit() -> None:
    (trouble,) = found(blocked(), UNIT)
    assert trouble.severity is Severity.WARNING
    assert trouble.text.startswith("MPS daemon /tmp/nvidia-mps has not written its logs for ")
    assert commands_of(trouble) == ("systemctl restart nvidia-cuda-mps.service",)


def test_repairs_a_blocked_log_by_quit_and_start() -> None:
    (trouble,) = found(blocked(), COMMAND)
    quits, start = commands_of(trouble)
    assert quits == 'echo "quit -t 3" | CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps nvidia-cuda-mps-control'
    assert start.endswith("nvidia-cuda-mps-control -d")


def test_ends_with_the_next_command_in_the_log() -> None:
    logged = control_log("Cmd:get_server_list", at=AT + 40)
    assert found(reduced(*logged, start=blocked()).node, UNIT) == []


# The parts of a finding, and which parts of the document are shown.


def test_a_finding_says_what_it_follows_from_whom_it_affects_and_what_each_command_ends() -> None:
    (first, *_) = document_of(daemon_down()).findings
    steps = (
        ManualStep(text="Look.", commands=("a",)),
        ManualStep(text="Wait.", ends=3),
        ManualStep(text="Do it.", commands=("b",), ends=0),
        ManualStep(text="End it.", commands=("c", "d"), ends=2),
    )
    names = tuple(f"PID {pid} (x of alice)" for pid in (7, 8))
    known = replace(first, follows="driver unusable", affected="2 clients", affected_names=names, outlook="It ends.")
    lines = [line.text for line in finding_lines(replace(known, facts=("one", "two"), steps=steps, runbook="url"))]
    assert lines[0] == f"CRITICAL: {first.text}"
    assert lines[1] == "  This may follow from another problem: driver unusable."
    assert lines[3:6] == ["  Affected: 2 clients", "  - PIDs 7 and 8 (x of alice)", "  Details:"]
    assert lines[6:9] == ["  - one", "  - two", "  It ends."]
    assert lines[9].startswith("  Caution: Do not start CUDA programs")
    assert lines[10:] == [
        "  What to do:",
        "  1. Look.",
        "     a",
        "  2. Wait.",
        "  3. Do it. This ends no client.",
        "     b",
        "  4. End it. This ends 2 clients.",
        "     c",
        "     d",
        "  See the project: url",
    ]
    alone = replace(first, affected="", affected_names=(), outlook="", facts=("one",), steps=steps[:1], runbook=None)
    lines = [line.text for line in finding_lines(alone)]
    assert [lines[2], *lines[4:]] == ["  - one", "  What to do: Look.", "     a"]
    many = replace(alone, facts=tuple(map(str, range(MOST_FACTS + 1))))
    assert [line.text for line in finding_lines(many)][1 + MOST_FACTS : 4 + MOST_FACTS][1] == "  - and 1 more"
    whole = replace(alone, facts=tuple(map(str, range(MOST_FACTS))))
    assert not any("more" in line.text for line in finding_lines(whole))


@pytest.mark.parametrize(
    ("mode", "expected", "text"),
    [
        ("act", [], "watchdog acts"),
        ("observe", [], "watchdog observes"),
        ("act", ["act", "act"], "watchdog acts"),
        ("observe", ["act"], "watchdog acts"),
        ("act", ["observe", None], "watchdog observes"),
        ("act", ["act", "observe", "act"], "watchdog acts for 2 of 3"),
    ],
)
def test_says_for_how_many_expected_daemons_the_watchdog_acts(mode: str, expected: list[str | None], text: str) -> None:
    assert modes(mode, expected) == text


def test_numbers_are_at_least_so_many_if_not_all_clients_are_known() -> None:
    assert counts_of([(True, 1, True), (False, 2, True)]) == "1 of 2 daemons up, 3 clients"
    assert counts_of([(True, 1, True), (True, 0, False)]) == "2 of 2 daemons up, at least 1 client"


@pytest.mark.parametrize("state", DaemonState)
def test_as_many_daemons_are_up_as_in_the_metric(state: DaemonState) -> None:
    present = idle()
    daemon = replace(present.daemons[DAEMON], state=state)
    changed = replace(present, daemons={DAEMON: daemon})
    shown = f"{int(daemon.answers)} of 1 daemons up"
    assert summary_line(View(changed)).startswith(shown)
    assert document_of(changed).summary.startswith(shown)


def test_faults_are_shown_for_an_hour_and_the_last_ten_are_in_the_document() -> None:
    ended: dict[str, Any] = {"ended_at": AT, "ending": IncidentEnd.RECOVERED}
    over = [incident(id=f"f{number}", detected_at=AT - number, **ended) for number in range(12)]
    document = status_document(StatusInput(node=idle(), at=AT + 3600, incidents=over))
    assert [each.id for each in document.incidents] == [f"f{number}" for number in range(10)]
    assert document.older_incidents == 2
    assert "10 faults in the last hour" in document.summary
    assert "Faults and deaths of the last hour:" in text_of(body(document))
    later = status_document(StatusInput(node=idle(), at=AT + 3601, incidents=over))
    assert "fault" not in later.summary
    assert "Faults and deaths of the last hour:" not in text_of(body(later))


def test_an_idle_watchdog_is_a_good_sign_only_for_a_daemon_that_is_well() -> None:
    def severity(present: Node) -> Severity:
        watchdog = document_of(present, Policy()).daemons[0].watchdog
        assert watchdog is not None
        return watchdog.severity

    assert (severity(idle()), severity(daemon_down())) == (Severity.WELL, Severity.UNKNOWN)
    assert severity(circuit_open()) is Severity.CRITICAL
    unwatched = replace(idle().daemons[DAEMON], declared=replace(idle().daemons[DAEMON].declared, expected=False))
    assert document_of(replace(idle(), daemons={DAEMON: unwatched}), Policy()).daemons[0].watchdog is None
    assert document_of(idle()).daemons[0].watchdog is None


def test_one_daemon_has_its_own_severity_findings_and_gpus() -> None:
    present = replace(two_daemons(), incidents=blocked_recovery().incidents)
    whole = document_of(present)
    other, own = only_daemon(whole, "/run/other"), only_daemon(whole, DAEMON)
    assert (other.severity, own.severity) == (Severity.WARNING, Severity.CRITICAL)
    assert {each.code for each in whole.findings} - {each.code for each in own.findings} == {"process_bypassing"}
    assert ([gpu.uuid for gpu in other.gpus], [gpu.uuid for gpu in own.gpus]) == ([], [GPU, OTHER_GPU])
    assert {each.daemon for each in own.failure_domains} == {DAEMON}
    assert other.failure_domains == tuple(each for each in whole.failure_domains if each.daemon == "/run/other")


def test_a_stalled_exporter_is_the_first_problem() -> None:
    document = status_document(StatusInput(node=three_clients(), at=AT + 60, stalled_seconds=20.0))
    first, *others = document.findings
    assert (first.code, first.since, document.severity) == ("exporter_stalled", AT + 40, first.severity)
    assert first.steps[0].commands == ("systemctl restart cuda-mps-exporter",)
    assert others


@pytest.mark.parametrize(
    ("runs_in", "declared", "shown"),
    [("a.service", "b.service", "a.service"), (None, "b.service", "b.service"), ("a.service", None, "a.service")],
)
def test_a_daemon_has_the_unit_in_which_it_runs_or_else_its_declared_one(
    runs_in: str | None, declared: str | None, shown: str
) -> None:
    daemon = with_fields(idle().daemons[DAEMON], runtime__unit=runs_in, declared__unit=declared)
    assert document_of(replace(idle(), daemons={DAEMON: daemon})).daemons[0].unit == shown
