"""What the watchdog says to a person: what is the matter, who tells so, what is done, and who must do what."""

import json
from dataclasses import replace
from typing import Any

import pytest

from exporter.model.action import ActionKind, ActionReason, ActionResult
from exporter.model.identity import ProcessIdentity
from exporter.model.node import Node
from exporter.model.reason import Reason, ReasonCode
from exporter.model.settings import Mode
from exporter.model.watchdog import (
    ActionCount,
    Condition,
    Diagnosis,
    LastAction,
    OngoingAction,
    Quarantine,
    WatchdogPhase,
)
from exporter.report import status_text
from exporter.report.objects import node_object
from exporter.report.reasons import text_of
from exporter.report.status_view import view_of
from exporter.report.watchdog_text import MOST_BRIEF, summary_lines
from exporter.watchdog.context import DaemonPolicy, Policy
from tests.builders import (
    AT,
    CRASHED,
    DAEMON,
    GPU,
    SERVER,
    at_work,
    backing_off,
    circuit_open,
    daemon_dead,
    faulted,
    held_up,
    idle,
    node,
    reduced,
    suspended,
    three_clients,
    watched,
)

ACTING = Policy(mode=Mode.ACT)
HEAD = f"MPS daemon {DAEMON} has been down for 10 s: process 441 has exited; nvidia-cuda-mps-control finds no daemon"


def said(present: Node) -> list[str]:
    return [line.text for line in summary_lines(present)]


def crashed(**known: Any) -> Node:
    """A daemon is dead, and the watchdog knows this besides."""
    return watched(daemon_dead(), **{"diagnosis": CRASHED, **known})


def diagnosed(condition: Condition, **known: Any) -> Node:
    return watched(three_clients(), diagnosis=Diagnosis(condition=condition, since=AT, **known))


# -- below the table, for whoever asks --------------------------------------------------------------------------------


@pytest.mark.parametrize("condition", [Condition.WELL, Condition.STARTING, Condition.UNKNOWN])
def test_where_nothing_is_the_matter_nothing_is_said(condition: Condition) -> None:
    """And nothing where nobody watches."""
    assert said(diagnosed(condition)) == said(three_clients()) == []
    assert status_text.status_table(diagnosed(condition)) == status_text.status_table(three_clients())


def test_what_is_the_matter_is_told_with_its_witnesses() -> None:
    assert said(crashed()) == [HEAD]
    assert HEAD in status_text.status_table(crashed()).splitlines()


def test_each_condition_has_words_of_its_own() -> None:
    found = [Diagnosis(condition=each, since=AT) for each in Condition]
    reduced = {said(watched(idle(), phase=WatchdogPhase.CIRCUIT_OPEN, diagnosis=each))[0] for each in found}
    assert len(reduced) == len(Condition)


def test_the_process_that_is_to_blame_is_named() -> None:
    assert said(suspended())[1] == f"  process: PID {SERVER} (nvidia-cuda-mps-server of root)"


@pytest.mark.parametrize("pid", [SERVER, 4711])
def test_whoever_has_its_pid_by_now_is_not(pid: int) -> None:
    culprit = ProcessIdentity(pid=pid, start_ticks=1)
    assert said(diagnosed(Condition.HELD, process=culprit))[1] == f"  process: PID {pid}"


def test_what_is_waited_for_is_told_with_when() -> None:
    waits = "  watchdog: restarted 1 time without success; next restart in 5.0 s or later"
    assert said(backing_off()) == [HEAD, waits]
    due = replace(backing_off(), at=AT + 21)
    assert said(due)[1].endswith("next restart now")


def test_why_the_last_action_failed_is_told() -> None:
    refused = Reason(ReasonCode.UNIT_NOT_RESTARTED, unit="a.service", text="no\n")
    known = replace(circuit_open().watches[DAEMON], problem=refused)
    shown = replace(circuit_open(), watches={DAEMON: known})
    assert said(shown)[2] == "  failed: systemctl could not restart a.service: no\N{REPLACEMENT CHARACTER}"


def test_an_open_circuit_is_told_with_the_command_that_closes_it() -> None:
    closes = f"`cuda-mps-exporter resume {DAEMON}`"
    assert said(circuit_open())[1] == f"  watchdog: restarts suspended for 9.0 s (circuit open), until {closes}"


def test_it_is_told_though_the_daemon_is_well() -> None:
    """Else nobody would know that the next crash will not be mended."""
    well = Diagnosis(condition=Condition.WELL, since=AT)
    headline, circuit = said(watched(idle(), phase=WatchdogPhase.CIRCUIT_OPEN, diagnosis=well))
    assert (headline, "circuit open" in circuit) == (f"MPS daemon {DAEMON} is well", True)


def test_a_quarantine_is_told_with_its_reason() -> None:
    quarantine = Quarantine(at=AT, xid=79, gpu=GPU, action="RESTART_BM")
    reduced = said(crashed(phase=WatchdogPhase.QUARANTINED, quarantine=quarantine))
    assert reduced[0] == (
        f"MPS daemon {DAEMON} has been quarantined for 15 s: Xid 79 (GPU fell off the bus): GPU 0 (GPU-1efa3f60) needs "
        "a reboot of the machine"
    )
    assert reduced[1].startswith(f"MPS daemon {DAEMON} has been down for 10 s: process 441 has exited")
    assert reduced[2].endswith(f"restarts suspended (GPU quarantined), until `cuda-mps-exporter resume {DAEMON}`")


def test_what_is_under_way_is_told_and_what_is_yet_to_be_seen() -> None:
    acting = OngoingAction(kind=ActionKind.RESTART, reason=ActionReason.CRASHED, began_at=AT + 14)
    under_way = crashed(phase=WatchdogPhase.ACTING, acting=acting)
    assert said(under_way)[1] == "  watchdog: restart (crashed): in progress for 1.0 s"
    done = crashed(phase=WatchdogPhase.ACTING, acting=replace(acting, done_at=AT + 14.5))
    assert said(done)[1].startswith("  watchdog: restart (crashed): done 0.5 s ago")


def test_whose_the_restart_is_is_told() -> None:
    assert "to systemd" in said(crashed(phase=WatchdogPhase.DEFERRED_TO_SYSTEMD))[1]


def test_where_it_is_at_nothing_it_says_what_it_said_last() -> None:
    would = LastAction(kind=ActionKind.RESTART, reason=ActionReason.CRASHED, begun=False)
    assert said(crashed(last_action=would)) == [HEAD, "  watchdog: would restart: crashed"]
    did = replace(would, kind=ActionKind.KILL_CLIENTS, begun=True)
    assert said(crashed(last_action=did)) == [HEAD, "  watchdog: kill clients: crashed"]
    waits = Reason(ReasonCode.SERVERS_CANNOT_START)
    assert said(crashed(reason=waits)) == [HEAD, f"  watchdog: {text_of(waits)}"]
    assert len(said(crashed(phase=WatchdogPhase.BACKOFF, reason=waits))) == 2, "and nothing twice"


def test_whatever_somebody_calls_himself_keeps_to_its_line() -> None:
    hostile = "a\n\x1b[2J\N{RIGHT-TO-LEFT OVERRIDE}'$(reboot)`"
    present = reduced(*at_work(daemon=hostile), start=node(hostile)).node
    foreign = Reason(ReasonCode.UNKNOWN, text=hostile)
    found = replace(CRASHED, indications=(foreign,))
    known = replace(circuit_open().watches[DAEMON], diagnosis=found, reason=foreign)
    for each in said(replace(present, watches={hostile: known})):
        assert each.isprintable()
    words = "".join(said(replace(present, watches={hostile: known})))
    assert "until an operator resumes it" in words, "a name that no line can have is in no command"


# -- on one line, for the service manager -----------------------------------------------------------------------------


def line(present: Node, policy: Policy | None = ACTING) -> str:
    return status_text.summary_line(present, policy)


def test_where_there_is_no_watchdog_it_is_as_ever() -> None:
    assert line(idle(), None) == "1 of 1 daemons up, 0 clients"


def test_it_begins_with_what_the_watchdog_may_do() -> None:
    assert line(idle()) == "watchdog acts; 1 of 1 daemons up, 0 clients"
    assert line(idle(), Policy()).startswith("watchdog observes; ")
    assert line(Node()).startswith("watchdog acts; 0 of 0 ")


def test_where_it_may_not_act_for_all_it_is_told_for_how_many() -> None:
    two = reduced(start=node(DAEMON, "/run/other")).node
    mixed = Policy(mode=Mode.ACT, daemon_policies={DAEMON: DaemonPolicy(mode=Mode.OBSERVE)})
    assert line(two, mixed).startswith("watchdog acts for 1 of 2; ")


def test_a_daemons_plight_is_told_in_a_few_words() -> None:
    assert line(circuit_open()) == (
        f"watchdog acts; 0 of 1 daemons up, 0 clients; {DAEMON}: daemon down, restarted 4 times, circuit open"
    )
    assert line(crashed()).endswith(f"{DAEMON}: daemon down")


def test_a_fault_is_told_once() -> None:
    known = Diagnosis(condition=Condition.FAULT, since=AT)
    assert line(replace(held_up(), watches=watched(idle(), diagnosis=known).watches)).count("FAULT") == 1


def test_of_many_some_are_named() -> None:
    names = [f"/run/{number}" for number in range(MOST_BRIEF + 2)]
    present = replace(node(*names), watches={name: crashed().watches[DAEMON] for name in names})
    assert line(present).endswith("/run/3: daemon down; 2 more daemons have problems")


# -- as an object, for a program --------------------------------------------------------------------------------------


def object_of(present: Node, policy: Policy | None = ACTING) -> Any:
    (daemon,) = json.loads(json.dumps(node_object(view_of(present, policy))["daemons"]))
    return daemon["watchdog"]


def test_where_nobody_watches_there_is_none() -> None:
    assert object_of(idle()) is None


def test_all_that_is_known_is_there() -> None:
    assert object_of(backing_off()) == {
        "mode": "act",
        "state": "backoff",
        "diagnosis": {
            "condition": "crashed",
            "since": AT + 5,
            "indications": [{"code": "process_gone", "pid": 441}, {"code": "no_daemon_found"}],
            "culprit": None,
            "server": None,
            "incident": None,
        },
        "acting": None,
        "restarts": [AT + 5],
        "failures": 1,
        "last_restart_at": AT + 5,
        "not_before": AT + 20,
        "circuit_opened_at": None,
        "state_lost_at": None,
        "quarantine": None,
        "stopped_at": None,
        "counts": [{"action": "restart", "reason": "crashed", "result": "failed", "count": 1}],
        "reason": None,
        "last_action": None,
        "problem": None,
    }


def test_what_is_named_and_under_way_is_there() -> None:
    acting = OngoingAction(kind=ActionKind.KILL_CLIENTS, reason=ActionReason.FAULT, began_at=AT)
    quarantine = Quarantine(at=AT, xid=79, gpu=GPU, action="RESTART_BM")
    found = object_of(watched(faulted(), diagnosis=CRASHED, acting=acting, quarantine=quarantine))
    assert found["acting"] == {"action": "kill_clients", "reason": "fault", "began_at": AT, "done_at": None}
    assert found["quarantine"] == {"at": AT, "xid": 79, "gpu": GPU, "action": "RESTART_BM"}
    assert object_of(suspended())["diagnosis"]["culprit"] == SERVER


def test_who_has_no_orders_knows_no_mode() -> None:
    assert object_of(backing_off(), None)["mode"] is None


def test_counts_are_those_of_the_metrics() -> None:
    action_counts = (
        ActionCount(
            kind=ActionKind.SET_LIMITS, reason=ActionReason.LIMITS_DRIFTED, result=ActionResult.OBSERVED, count=7
        ),
    )
    (count,) = object_of(watched(idle(), action_counts=action_counts))["counts"]
    assert (count["reason"], count["count"]) == ("limits_drifted", 7)


def test_why_it_waits_and_what_failed_are_codes() -> None:
    waits = Reason(ReasonCode.HANG_TOO_RECENT, seconds=90.0)
    would = LastAction(kind=ActionKind.RESTART, reason=ActionReason.HUNG, begun=False)
    found = object_of(watched(idle(), reason=waits, problem=Reason(ReasonCode.NO_RESULT), last_action=would))
    assert found["reason"] == {"code": "hang_too_recent", "seconds": 90.0}
    assert found["problem"] == {"code": "no_result"}
    assert found["last_action"] == {"action": "restart", "reason": "hung", "begun": False}
