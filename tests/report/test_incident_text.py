"""A fault in words: what a person reads at night."""

import json
from typing import Any

import pytest

from exporter.model.incident import Clues, Incident, IncidentEnd, IncidentKind, IncidentXid, InFlightWork, RecoveryDelay
from exporter.report.incident_text import MOST_LISTED
from exporter.report.remedy import Address
from exporter.report.text import Style, local_time, short_time, text_of, zone_text, zoned_time
from tests.builders import AT, DAEMON, GPU, MIB, OTHER_GPU, SERVER
from tests.incidents.values import (
    FAULT_NS,
    HOSTILE,
    blocked,
    crowded,
    ended,
    fault_kernels,
    hostile,
    incident,
    launched,
    suspect,
)
from tests.status import NOW, brief_of, details_of, incident_json, table_of

ENDING = {client.client: (client.pid,) for client in blocked().client_details.values()}
ADDRESS = Address(pipe_directory=DAEMON, server_ends={SERVER: f"shutdown_server {SERVER} -f"}, ending=ENDING)

WHEN = local_time(AT)
ZONE, ZONED = zone_text(AT), zoned_time(AT)

IN_WORDS = f"""\
513-1a: memory fault on server 513 of /tmp/nvidia-mps: open for 3 min 2 s, blocked by 1 client
  Began      {WHEN} {ZONE.split()[0]} (1970-01-12T13:46:40.000Z), 3 min 2 s ago
  GPUs       GPU-1efa3f60-b0ba-115c-7d58-bd5711d3de4b
  Xids       31: illegal address (FIFO_ERROR_MMU_ERR_FLT), on GPU-1efa3f60, names PID 600 (train.py)\
; NVIDIA advises RESTART_APP
  Affected   2 clients:
             PID 600 (train.py of alice, job 42), 1540 MiB on GPU-1efa3f60
             PID 601 (vllm of bob), 1540 MiB on GPU-1efa3f60
  Suspect    very likely PID 600 (train.py of alice)
             0.85 PID 600 (train.py of alice): its contexts ended 120 ms before the fault,\
 as when a client ends while a kernel runs
             0.15 PID 601 (train.py of alice): the log names it, which is no better than chance
  Refused    2 new clients, because the server was in FAULT (error 807)
             PID 700
  Blocked by PID 601 (vllm of bob), for 3 min 2 s so far; this ends it:
               kill -KILL 601
             PID 600 (train.py of alice, job 42), for 2.0 s"""

TABLE = f"""\
ID      WHEN                       DAEMON           KIND      GPU              AFFECTED  SUSPECT                                  STATE
513-1a  {ZONED}  /tmp/nvidia-mps  memory    GPU-1efa3f60            2  very likely PID 600 (train.py of alice)  open for 3 min 2 s, blocked by 1 client
b       {ZONED}  /tmp/nvidia-mps  memory    GPU-1efa3f60            2  likely one of 600, 601                   recovered in 4.2 s
c       {ZONED}  /tmp/nvidia-mps  hardware  GPU-1efa3f60 +1         2  none                                     over: the server has exited
d       {ZONED}  /tmp/nvidia-mps  unknown   -                       ?  unknown                                  over: the daemon has exited
"""  # noqa: E501


class TestDetails:
    """All that is known, and what to do."""

    def test_open_incident(self) -> None:
        assert text_of(details_of(blocked(), NOW, ADDRESS)) == f"{IN_WORDS}\n"

    def test_styles_the_state_and_the_commands(self) -> None:
        shown = details_of(blocked(), NOW, ADDRESS)
        assert [line.text for line in shown if line.has(Style.COMMAND)] == ["               kill -KILL 601"]
        assert [line for line in shown if line.has(Style.ERROR)] == shown[:1]
        assert not any(line.has(Style.ERROR) for line in details_of(ended(), NOW, ADDRESS))

    def test_ended_incident_has_no_commands(self) -> None:
        over = ended(blocking={601: RecoveryDelay(since=AT, until=AT + 4)})
        shown = text_of(details_of(over, NOW, ADDRESS))
        assert "  Blocked by PID 601 (train.py of alice), for 4.0 s" in shown
        assert "kill" not in shown

    def test_hardware_fault_has_no_suspects(self) -> None:
        xid = IncidentXid(at=AT, number=48, gpu=GPU)
        shown = text_of(
            details_of(ended(kind=IncidentKind.HARDWARE, xids=(xid,), suspects=(suspect(600, 0.9),)), NOW, None)
        )
        assert "  Suspect    none: the hardware failed" in shown
        assert "0.90" not in shown
        assert "48: uncorrectable memory error" in shown

    def test_names_what_is_unknown(self) -> None:
        """An empty line would look like a defect."""
        nothing = incident(gpus=(), affected=(), affected_confirmed=False, kind=IncidentKind.UNKNOWN)
        shown = [line.text.split(maxsplit=1)[1] for line in details_of(nothing, NOW, None)[2:]]
        assert shown == [
            "unknown",
            "none reported",
            "an unknown number of clients",
            "unknown: no indication of a cause",
        ]

    def test_shows_work_in_flight_if_it_is_known(self) -> None:
        in_flight_work = (InFlightWork(pid=600, in_flight=True), InFlightWork(pid=601, in_flight=False))
        shown = text_of(
            details_of(incident(affected=(600, 601, 602), clues=Clues(in_flight_work=in_flight_work)), NOW, None)
        )
        assert "PID 600 (train.py of alice), 1540 MiB on GPU-1efa3f60, with work in flight\n" in shown
        assert "PID 601 (train.py of alice), 1540 MiB on GPU-1efa3f60, with no work in flight\n" in shown
        assert "PID 602\n" in shown

    def test_marks_an_inferred_list_of_affected_clients(self) -> None:
        shown = text_of(details_of(incident(affected_confirmed=False), NOW, None))
        assert "2 clients, inferred from the GPUs that clients share" in shown

    def test_shows_kernels_in_flight_and_the_last_launches_of_the_leading_suspect(self) -> None:
        scale, add = launched("scale"), launched("add", "relu", seconds=0.15, completed=7)
        kernels = (
            fault_kernels(600, scale, add, in_flight_count=9, last=(launched("late", seconds=-1), scale, add)),
            fault_kernels(601, launched(), began_before_exporter=True, names_lost=2),
            fault_kernels(602, launches_since_ns=FAULT_NS - 1_500_000_000),
            fault_kernels(
                603,
                launched("copy", completed=1),
                launches_until_ns=FAULT_NS - 3_000_000_000,
                earlier_faults={"_Z4copyv": 2},
            ),
        )
        kernels += (fault_kernels(604, launched("last", completed=1), launches_until_ns=FAULT_NS + 1),)
        suspects = (suspect(600, 0.9), suspect(601, 0.05))
        struck = incident(affected=(601, 602, 603, 604), suspects=suspects, clues=Clues(kernels=kernels))
        shown = text_of(details_of(struck, NOW, None))
        assert shown[shown.index("  In flight") :] == (
            "  In flight  PID 600: scale (no completed launch is known); graph of add, relu; 7 more\n"
            "             PID 601: unknown (no completed launch is known); names are unknown because it began before"
            " the exporter; names and launches were lost because there were too many\n"
            "             PID 602: none known; only launches in the last 1.5 s are known\n"
            "             PID 603: copy (in flight at 2 earlier faults of its workload); launches in the last 3.0 s"
            " are unknown because of too many calls\n"
            "             PID 604: last\n"
            "  Launched   PID 600: scale 12 ms before; graph of add, relu 0.1 s before\n"
        )

    def test_an_unknown_client_is_a_pid(self) -> None:
        """One in another PID namespace is not even that."""
        shown = text_of(
            details_of(
                incident(affected=(600, -7), client_details={}, blocking={-7: RecoveryDelay(since=AT)}), NOW, ADDRESS
            )
        )
        assert "             PID 600\n             an unknown PID" in shown
        assert "kill" not in shown

    def test_xid_without_a_catalogue_entry(self) -> None:
        assert "  Xids       999" in text_of(details_of(incident(xids=(IncidentXid(at=AT, number=999),)), NOW, None))

    def test_counts_many_clients(self) -> None:
        """The page stays a page, with the commands for the first of them."""
        shown = [line.text for line in details_of(crowded(), NOW, ADDRESS)]
        assert "  Affected   400 clients:" in shown
        assert f"{'':13}and 384 more" in shown
        assert "  Refused    9000 new clients, because the server was in FAULT (error 807)" in shown
        assert len(shown) < 200

    def test_many_suspects_with_the_same_indications_share_a_line(self) -> None:
        few = (suspect(600, 0.5), suspect(601, 0.2), suspect(602, 0.2))
        lines = [line.text.strip() for line in details_of(incident(suspects=few), NOW, None)]
        assert [line[:13] for line in lines if line.startswith("0.2")] == ["0.20 PID 601 ", "0.20 PID 602 "]
        many = (*few, suspect(603, 0.2), suspect(604, 0.1))
        lines = [line.text.strip() for line in details_of(incident(suspects=many), NOW, None)]
        assert [line.partition(":")[0] for line in lines if line.startswith("0.2")] == ["0.20 each of 3 others"]
        assert sum(line.startswith("0.1") for line in lines) == 1

    def test_lists_some_of_the_clients_that_block_recovery_and_those_that_did(self) -> None:
        now = {pid: RecoveryDelay(since=AT) for pid in range(700, 700 + MOST_LISTED + 2)}
        before = {600: RecoveryDelay(since=AT, until=AT + 2)}
        lines = [line.text.strip() for line in details_of(incident(blocking={**before, **now}), NOW, ADDRESS)]
        assert sum(line.endswith(" so far") for line in lines) == MOST_LISTED
        assert lines[-2:] == ["and 2 more", "PID 600 (train.py of alice), for 2.0 s"]
        whole = dict(list(now.items())[:MOST_LISTED])
        assert not any("more" in line.text for line in details_of(incident(blocking=whole), NOW, ADDRESS))

    def test_a_server_that_is_stuck_has_its_command(self) -> None:
        lines = [line.text.strip() for line in details_of(incident(stuck=True), NOW, ADDRESS)]
        assert "no client: all affected clients have exited" in lines[-3]
        assert lines[-1].startswith('echo "shutdown_server 513 -f"')
        assert "shutdown_server" not in text_of(details_of(incident(), NOW, ADDRESS))


class TestBrief:
    """One line of it."""

    @pytest.mark.parametrize(
        ("fault", "line"),
        [
            (
                blocked(),
                (
                    "513-1a: memory fault on server 513 of /tmp/nvidia-mps: open for 3 min 2 s, blocked by 1 client;"
                    " 2 clients affected; suspect: very likely PID 600 (train.py of alice)"
                ),
            ),
            (
                ended(kind=IncidentKind.CLIENT_KILLED, affected=(601,)),
                (
                    "513-1a: fault by a client killed while its kernel ran on server 513 of /tmp/nvidia-mps,"
                    " 3 min 2 s ago: recovered in 4.2 s; 1 client affected; suspect: unknown: no indication of a cause"
                ),
            ),
        ],
        ids=("open", "recovered"),
    )
    def test_shows_the_state(self, fault: Incident, line: str) -> None:
        assert brief_of(fault, NOW) == line


class TestTable:
    """One row for each."""

    def test_lists_incidents(self) -> None:
        suspects = (suspect(600, 0.35), suspect(601, 0.35), suspect(602, 0.3))
        faults = (
            blocked(),
            ended(id="b", suspects=suspects),
            ended(IncidentEnd.SERVER_GONE, id="c", kind=IncidentKind.HARDWARE, gpus=(GPU, OTHER_GPU)),
            ended(IncidentEnd.DAEMON_GONE, id="d", kind=IncidentKind.UNKNOWN, gpus=(), affected=()),
        )
        assert text_of(table_of(faults)) == TABLE

    def test_a_terminal_shows_ages_and_the_command_for_details_of(self) -> None:
        header, newest, older, zone, hint = text_of(table_of([ended(id="b"), blocked()], 160)).splitlines()
        assert header.split()[1:4] == ["WHEN", "AGO", "DAEMON"]
        assert (f"{short_time(AT, NOW)}  3 min 2 s  " in newest, f"{short_time(AT, NOW)}  3 min 2 s  " in older) == (
            True,
            True,
        )
        assert zone == f"times in {zone_text(NOW)}"
        assert hint == "details of one: cuda-mps-exporter incidents 513-1a"

    @pytest.mark.parametrize("width", [80, 100, 120])
    def test_fits_the_terminal(self, width: int) -> None:
        """The ID, the suspect and the state are always shown."""
        header, *rows, _, _ = table_of([blocked(id="2147483-1a1fe91cac0"), ended()], width)
        assert all(len(row.text) <= width for row in (header, *rows) if not row.text.startswith("not shown"))
        assert {"ID", "WHEN", "SUSPECT", "STATE"} <= set(header.text.split())

    def test_styles_open_incidents(self) -> None:
        _, first, second = table_of([blocked(), ended(id="b")])
        assert (first.has(Style.ERROR), second.has(Style.ERROR)) == (True, False)

    def test_no_incidents(self) -> None:
        assert text_of(table_of(())) == "No incidents.\n"


# A fault as an object: every key there is.


ADDRESS_OBJECT = Address(pipe_directory=DAEMON, ending=ENDING)

ALICE = {
    "pid": 600,
    "client": "600-10",
    "uid": 1001,
    "user": "alice",
    "command": "train.py",
    "unit": None,
    "container": None,
    "pod_uid": None,
    "pod": None,
    "namespace": None,
    "job_manager": "slurm",
    "job_id": "42",
    "workload": {"kind": "job", "name": "42"},
    "memory_used_bytes": {GPU: 1540 * MIB},
}
BOB = {**ALICE, "pid": 601, "client": "601-10", "uid": 1002, "user": "bob", "command": "vllm"}
BOB |= {"job_manager": None, "job_id": None, "workload": None}


def codes(suspect: dict[str, Any]) -> list[str]:
    return [each["code"] for each in suspect["indications"]]


def test_open_incident() -> None:
    shown = incident_json(blocked(), address=ADDRESS_OBJECT)
    suspects = shown.pop("suspects")

    assert shown == {
        "id": "513-1a",
        "at": NOW,
        "daemon": DAEMON,
        "server": 513,
        "is_fault": True,
        "state": "open",
        "ending": None,
        "settled": False,
        "kind": "memory",
        "title": "memory fault on server 513 of /tmp/nvidia-mps",
        "leading": [600],
        "likelihood": "very likely",
        "address": None,
        "gpus": [GPU],
        "xids": [
            {
                "xid": 31,
                "mnemonic": "FIFO_ERROR_MMU_ERR_FLT",
                "meaning": "illegal address",
                "cause": "application",
                "advice": "RESTART_APP",
                "gpu": GPU,
                "pid": 600,
                "name": "train.py",
                "at": AT,
            }
        ],
        "started_at": AT,
        "detected_at": AT + 0.125,
        "ended_at": None,
        "seconds": None,
        "core_dumps": [],
        "affected": [{**ALICE, "in_flight": None}, {**BOB, "in_flight": None}],
        "affected_count": 2,
        "affected_confirmed": True,
        "restart": [],
        "verdict": "very likely PID 600 (train.py of alice)",
        "refused": [700],
        "refused_count": 2,
        "blocking": [
            {**ALICE, "since": AT, "until": AT + 2, "seconds": 2.0, "kill_command": []},
            {**BOB, "since": AT, "until": None, "seconds": 182.0, "kill_command": ["kill -KILL 601"]},
        ],
        "blocking_count": 1,
        "stuck": False,
        "end_server_command": [],
    }
    assert [(each["pid"], each["confidence"], each["likelihood"], codes(each)) for each in suspects] == [
        (600, 0.85, "very likely", ["contexts_ended_before_fault"]),
        (601, 0.15, "unlikely", ["named_by_log"]),
    ]


def test_ended_incident() -> None:
    shown = incident_json(ended(IncidentEnd.SERVER_GONE))

    assert (shown["state"], shown["ending"], shown["settled"]) == ("ended", "server_gone", True)
    assert (shown["ended_at"], shown["seconds"]) == (AT + 4.25, 4.25)


def test_clients_have_their_kernels() -> None:
    kernels = fault_kernels(600, launched("scale", grid=(4, 2, 1)), launched("add", "relu"))
    shown = incident_json(incident(suspects=(suspect(600, 0.9),), clues=Clues(kernels=(kernels,))))
    (affected, other), (suspected,) = shown["affected"], shown["suspects"]
    assert [each.get("name") for each in affected["kernels"]["in_flight"]] == [
        {"raw": "_Z5scalev", "short": "scale"},
        None,
    ]
    assert [each["grid"] for each in suspected["kernels"]["last"]] == [[4, 2, 1], [0, 0, 0]]
    assert [each["short"] for each in suspected["kernels"]["in_flight"][1]["nodes"]] == ["add", "relu"]
    assert affected["kernels"] == suspected["kernels"]
    assert "kernels" not in other


def test_affected_clients_have_in_flight_if_it_is_known() -> None:
    in_flight_work = (InFlightWork(pid=600, in_flight=True), InFlightWork(pid=601, in_flight=False))
    shown = incident_json(incident(affected=(600, 601, 602), clues=Clues(in_flight_work=in_flight_work)))["affected"]

    assert [each["in_flight"] for each in shown] == [True, False, None]


def test_an_unknown_client_has_only_its_pid() -> None:
    (shown,) = incident_json(incident(affected=(600,), client_details={}))["affected"]

    assert {key for key, value in shown.items() if value} == {"pid"}


def test_names_are_short_and_printable(subtests: pytest.Subtests) -> None:
    for name in HOSTILE:
        with subtests.test(name=name):
            text = json.dumps(incident_json(hostile(name)), ensure_ascii=False)

            assert text.isprintable()
            text.encode()
            assert len(text) < 70_000


def test_size_is_bounded_for_many_clients_with_long_names() -> None:
    shown = incident_json(crowded(5000, "x" * 10_000))

    assert (shown["affected_count"], len(shown["affected"]), shown["blocking_count"]) == (5000, 512, 5000)
    assert len(json.dumps(shown)) < 4 << 20
