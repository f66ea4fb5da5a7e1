"""A fault as an object: every key there is."""

import json

import pytest

from exporter.model.incident import Clues, FaultKind, IncidentEnd, InFlightWork
from exporter.report.objects import incident_object
from exporter.report.remedy import Address
from tests.builders import AT, DAEMON, GPU, MIB
from tests.incidents.values import HOSTILE, blocked, crowded, ended, hostile, incident

LIVING = {client.pid: client.client for client in blocked().client_details.values()}
ADDRESS = Address(pipe_directory=DAEMON, living=LIVING)

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
    "slurm_job_id": "42",
    "workload": {"kind": "slurm_job", "name": "42"},
    "memory_used_bytes": {GPU: 1540 * MIB},
}
BOB = {**ALICE, "pid": 601, "client": "601-10", "uid": 1002, "user": "bob", "command": "vllm"}
BOB |= {"slurm_job_id": None, "workload": None}


def test_open_incident() -> None:
    shown = json.loads(json.dumps(incident_object(blocked(), now=AT + 182, address=ADDRESS)))
    suspects = shown.pop("suspects")

    assert shown == {
        "id": "513-1a",
        "daemon": DAEMON,
        "server": 513,
        "state": "open",
        "ending": None,
        "settled": False,
        "kind": "memory",
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
        "started": "1970-01-12T13:46:40.000Z",
        "detected_at": AT + 0.125,
        "detected": "1970-01-12T13:46:40.125Z",
        "ended_at": None,
        "ended": None,
        "seconds": None,
        "affected": [{**ALICE, "in_flight": None}, {**BOB, "in_flight": None}],
        "affected_count": 2,
        "affected_confirmed": True,
        "verdict": "very likely PID 600 (train.py of alice)",
        "hardware_fault": False,
        "refused": [{"at": AT + 1, "pid": 700}, {"at": AT + 2, "pid": None}],
        "refused_count": 2,
        "blocking": [
            {**ALICE, "since": AT, "until": AT + 2, "seconds": 2.0, "kill_command": []},
            {**BOB, "since": AT, "until": None, "seconds": 182.0, "kill_command": ["kill -KILL 601"]},
        ],
        "blocking_count": 1,
        "stuck": False,
        "end_server_command": [],
    }
    assert [(each["pid"], each["confidence"], each["likelihood"], each["indications"]) for each in suspects] == [
        (600, 0.85, "very likely", [{"code": "contexts_ended_before_fault", "seconds": 0.12}]),
        (601, 0.15, "unlikely", [{"code": "named_by_log"}]),
    ]


def test_ended_incident() -> None:
    shown = incident_object(ended(IncidentEnd.SERVER_GONE))

    assert (shown["state"], shown["ending"], shown["settled"]) == ("ended", "server_gone", True)
    assert (shown["ended_at"], shown["ended"], shown["seconds"]) == (AT + 4.25, "1970-01-12T13:46:44.250Z", 4.25)


def test_marks_a_hardware_fault() -> None:
    assert incident_object(incident(kind=FaultKind.HARDWARE))["hardware_fault"] is True


def test_affected_clients_have_in_flight_if_it_is_known() -> None:
    in_flight_work = (InFlightWork(pid=600, in_flight=True), InFlightWork(pid=601, in_flight=False))
    shown = incident_object(incident(affected=(600, 601, 602), clues=Clues(in_flight_work=in_flight_work)))["affected"]

    assert [each["in_flight"] for each in shown] == [True, False, None]


def test_durations_of_blockers_are_null_without_the_time() -> None:
    shown = incident_object(blocked(), address=ADDRESS)["blocking"]

    assert [each["seconds"] for each in shown] == [2.0, None]
    assert shown[1]["kill_command"] == ["kill -KILL 601"]


def test_an_unknown_client_has_only_its_pid() -> None:
    (shown,) = incident_object(incident(affected=(600,), client_details={}))["affected"]

    assert {key for key, value in shown.items() if value} == {"pid"}


def test_names_are_short_and_printable(subtests: pytest.Subtests) -> None:
    for name in HOSTILE:
        with subtests.test(name=name):
            text = json.dumps(incident_object(hostile(name)), ensure_ascii=False)

            assert text.isprintable()
            text.encode()
            assert len(text) < 20_000


def test_size_is_bounded_for_many_clients_with_long_names() -> None:
    shown = incident_object(crowded(5000, "x" * 10_000))

    assert (shown["affected_count"], len(shown["affected"]), shown["blocking_count"]) == (5000, 512, 5000)
    assert len(json.dumps(shown)) < 4 << 20
