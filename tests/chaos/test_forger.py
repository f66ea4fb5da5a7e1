"""The forger acts as described, and the rules about claims find what is false and pass what is true."""

import random
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.claims import (
    Claim,
    Claims,
    Evidence,
    false_incidents,
    false_losses,
    false_news_of_the_neighbour,
    innocents_suspected,
    missed_incidents,
    missed_losses,
)
from tests.chaos.forger import Forger, Target
from tests.chaos.forgeries import LINES, Situation, hostile_name
from tests.chaos.process_watch import MpsProcess, Role
from tests.chaos.terms import DAEMON, NEIGHBOUR
from tests.standin.mps import MpsStandIn, Truth, is_alive
from tests.standin.mps_daemon.logs import message, send

SITUATION = Situation("/pipe", daemon=10, servers=(20,), clients=(31, 32, 33), others=(40, 41), bystanders=(50,))
SERVER = 20
CULPRIT, INNOCENT = 31, 32


@pytest.fixture
def mps(mps: MpsStandIn) -> MpsStandIn:
    """A running daemon without clients."""
    mps.start()
    return mps


def test_a_seed_determines_the_forged_lines(subtests: pytest.Subtests) -> None:
    for means in LINES:
        with subtests.test(means=means):
            assert means(SITUATION, random.Random(7)) == means(SITUATION, random.Random(7))
            assert hostile_name(10, random.Random(7), "now") == hostile_name(10, random.Random(7), "now")


def test_every_forged_line_reaches_a_log(mps: MpsStandIn) -> None:
    lines = [line for means in LINES for line in means(SITUATION, random.Random(7))]
    for kind, pid, text in lines:
        send(mps.pipe_directory / "log", message(kind, pid, text))
    mps.say("control", "the end")

    logs = (mps.control_log + mps.server_log).splitlines()
    for kind, pid, text in lines:
        assert any(line.endswith(f" {kind.role} {pid:5d}] {text}") for line in logs), text


def test_the_forger_ends_no_process(mps: MpsStandIn, tmp_path: Path) -> None:
    with MpsStandIn(tmp_path / "other") as other, subprocess.Popen(["sleep", "600"]) as client:
        other.start()
        mps.connect_and_wait(client.pid)
        servants = (mps.pid, mps.server_pid or 0, other.pid, client.pid)
        targets = [Target(str(each.pipe_directory), (other.pid,)) for each in (mps, other)]
        forger = Forger(targets, "7")
        actions = {forger.act().partition(" ")[0] for _ in range(40)}

        assert {"forge", "ask", "flood"} <= actions
        assert all(map(is_alive, servants))
        assert (mps.pid, other.pid) == servants[0:3:2], "a PID file that was tampered with was not put right"
        assert mps.ask("get_server_list").stdout == f"{servants[1]}\n"
        client.kill()


# -- claims --------------------------------------------------------------------------------------------------------


def evidence(
    *claims: Claim,
    ended: Sequence[MpsProcess] = (),
    truth: Sequence[Truth] = (),
) -> Evidence:
    """Return these claims and truths, of an exporter that ran from 0 to 1000."""
    return Evidence(
        claims=Claims(list(claims)),
        ended=list(ended),
        truth=list(truth),
        watched=[(0.0, 1000.0)],
        apart=0.1,
        slowness=1.0,
    )


def claim(at: float, event: str, daemon: str = DAEMON, **fields: Any) -> Claim:
    return Claim(1, at, event, daemon, {"server": SERVER, "incident": "i", **fields})


def death(at: float, status: int = -9) -> MpsProcess:
    return MpsProcess(pid=10, ticks=1, role=Role.DAEMON, parent=1, began=at - 60, ended=at, status=status)


def a_fault(at: float, culprit: int = CULPRIT) -> Truth:
    return Truth(at, "fault", SERVER, "memory", culprit)


def test_a_loss_without_an_exit_is_false() -> None:
    lost = claim(100.2, "daemon_lost")

    assert list(false_losses(evidence(lost)))
    assert not list(false_losses(evidence(lost, ended=[death(100.0)])))
    assert list(false_losses(evidence(lost, claim(103.0, "daemon_stopped"), ended=[death(100.0)])))
    assert list(false_losses(evidence(claim(50.0, "daemon_lost"), ended=[death(100.0)])))


def test_a_daemon_that_finds_another_one_is_no_loss() -> None:
    assert list(false_losses(evidence(claim(100.2, "daemon_lost"), ended=[death(100.0, status=1)])))
    assert not list(missed_losses(evidence(ended=[death(100.0, status=1)])))


def test_an_exit_without_a_loss_is_missed() -> None:
    assert list(missed_losses(evidence(ended=[death(100.0)])))
    assert not list(missed_losses(evidence(claim(100.2, "daemon_stopped"), ended=[death(100.0)])))
    assert not list(missed_losses(evidence(ended=[death(999.0)]))), "it may still be told"


def test_each_incident_needs_its_own_fault() -> None:
    first, second = claim(100.2, "fault"), claim(101.0, "fault", incident="j")

    assert list(false_incidents(evidence(first)))
    assert not list(false_incidents(evidence(first, truth=[a_fault(100.0)])))
    assert list(false_incidents(evidence(first, second, truth=[a_fault(100.0)])))
    assert list(false_incidents(evidence(claim(100.2, "fault", server=21), truth=[a_fault(100.0)])))


def test_a_fault_without_an_incident_is_missed() -> None:
    other_server_ends = replace(death(100.1), role=Role.SERVER, pid=SERVER + 1)

    assert list(missed_incidents(evidence(truth=[a_fault(100.0)])))
    assert list(missed_incidents(evidence(claim(100.2, "fault", server=21), truth=[a_fault(100.0)])))
    assert not list(missed_incidents(evidence(claim(100.2, "fault"), truth=[a_fault(100.0)])))
    assert not list(missed_incidents(evidence(truth=[a_fault(100.0)], ended=[other_server_ends])))
    assert not list(missed_incidents(evidence(truth=[a_fault(999.0)]))), "it may still be told"

    brief = replace(death(98.0), role=Role.SERVER, pid=SERVER + 1, began=97.9)
    assert not list(missed_incidents(evidence(truth=[a_fault(100.0)], ended=[brief])))
    assert list(missed_incidents(evidence(truth=[a_fault(100.0)], ended=[replace(brief, began=50.0)])))


def test_two_faults_are_one_until_the_affected_clients_are_gone() -> None:
    first, second = replace(a_fault(100.0), victims=(INNOCENT,)), replace(a_fault(102.0), victims=(INNOCENT,))
    gone = Truth(101.0, "gone", SERVER, "client", INNOCENT)
    told = claim(100.2, "fault")

    assert not list(missed_incidents(evidence(told, truth=[first, second])))
    assert list(missed_incidents(evidence(told, truth=[first, gone, second])))


@pytest.mark.parametrize(("pid", "confidence", "blamed"), [(INNOCENT, 0.5, 1), (INNOCENT, 0.4, 0), (CULPRIT, 0.9, 0)])
def test_a_confident_suspicion_needs_the_actual_cause(pid: int, confidence: float, blamed: int) -> None:
    suspects = [{"pid": pid, "confidence": confidence, "indications": []}]
    told = [claim(100.2, "fault"), claim(100.5, "fault_changed", suspects=suspects)]

    assert len(list(innocents_suspected(evidence(*told, truth=[a_fault(100.0)])))) == blamed


@pytest.mark.parametrize(("went", "blamed"), [(99.9, 0), (90.0, 1), (105.0, 1)])
def test_a_client_that_exited_before_a_fault_may_be_suspected(went: float, blamed: int) -> None:
    suspects = [{"pid": INNOCENT, "confidence": 0.7, "indications": []}]
    gone = Truth(went, "gone", SERVER, "client", INNOCENT)
    told = evidence(claim(100.2, "fault", suspects=suspects), truth=[gone, a_fault(100.0)])

    assert len(list(innocents_suspected(told))) == blamed


@pytest.mark.parametrize(("victims", "blamed"), [((INNOCENT,), 0), ((INNOCENT, 33), 0), ((INNOCENT, 33, 34), 1)])
def test_one_of_few_affected_clients_may_be_suspected(victims: tuple[int, ...], blamed: int) -> None:
    suspects = [{"pid": INNOCENT, "confidence": 0.5, "indications": []}]
    told = evidence(claim(100.2, "fault", suspects=suspects), truth=[replace(a_fault(100.0), victims=victims)])

    assert len(list(innocents_suspected(told))) == blamed


def test_each_grave_event_of_the_other_daemon_is_false() -> None:
    assert list(false_news_of_the_neighbour(evidence(claim(1.0, "daemon_lost", NEIGHBOUR))))
    assert not list(false_news_of_the_neighbour(evidence(claim(1.0, "client_connected", NEIGHBOUR))))
