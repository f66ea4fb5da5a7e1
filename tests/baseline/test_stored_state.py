"""A state file of schema version 4 is read without loss: circuit, quarantine, stop, incident, events, totals."""

import gzip
from pathlib import Path

import pytest

from exporter.model.action import ActionKind, ActionReason, ActionResult
from exporter.model.event import EventName
from exporter.model.reason import Reason, ReasonCode
from exporter.model.settings import Retention
from exporter.model.watchdog import Condition, WatchdogPhase
from exporter.store.database import FILE, StateFile, StoredState
from tests.baseline.replayed import HERE
from tests.clocks import HandClock

SM_US_AND_MILLIJOULES = {
    "GPU-000000a0-0000-4000-8000-0000000000a0": (15869568, 39711029),
    "GPU-000000a1-0000-4000-8000-0000000000a1": (75971206, 75127397),
    "GPU-000000a2-0000-4000-8000-0000000000a2": (81973365, 77205747),
    "GPU-000000a3-0000-4000-8000-0000000000a3": (94623003, 84797727),
    "GPU-000000a4-0000-4000-8000-0000000000a4": (651427, 31982380),
}


@pytest.fixture
def remembered(tmp_path: Path) -> StoredState:
    (tmp_path / FILE).write_bytes(gzip.decompress((HERE / "state_version_4.sqlite.gz").read_bytes()))
    archive = StateFile(tmp_path, Retention(max_age=1e9), HandClock(1795187400.0))
    found = archive.open()
    archive.close()
    return found


def test_no_row_is_lost(remembered: StoredState) -> None:
    assert remembered.unreadable == 0
    assert remembered.complete
    assert len(remembered.events) == 126


def test_an_open_circuit_stays_open(remembered: StoredState) -> None:
    watch = remembered.watchdog_states["with-open-circuit"]
    assert watch.phase is WatchdogPhase.CIRCUIT_OPEN
    assert watch.circuit_opened_at == 1795186926.0
    assert watch.restarts == (1795186921.0,)
    assert watch.limits is not None
    assert watch.limits.pinned_memory == {0: 16 << 30}
    assert watch.diagnosis is not None
    assert watch.diagnosis.condition is Condition.CRASHED
    assert watch.diagnosis.indications == (
        Reason(ReasonCode.PROCESS_GONE, pid=40938),
        Reason(ReasonCode.NO_DAEMON_FOUND),
        Reason(ReasonCode.LOG_ENDS_WITHOUT_QUIT),
        Reason(ReasonCode.PID_FILE_LEFT),
    )
    assert watch.reason == Reason(ReasonCode.RESTARTS_DID_NOT_HELP, count=1, seconds=900.0)
    assert [(each.kind, each.reason, each.result, each.count) for each in watch.action_counts] == [
        (ActionKind.RESTART, ActionReason.CRASHED, ActionResult.SUCCEEDED, 1),
        (ActionKind.SET_LIMITS, ActionReason.LIMITS_LOST, ActionResult.SUCCEEDED, 1),
    ]


def test_a_quarantine_stays(remembered: StoredState) -> None:
    watch = remembered.watchdog_states["in-quarantine"]
    assert watch.phase is WatchdogPhase.QUARANTINED
    assert watch.quarantine is not None
    assert (watch.quarantine.xid, watch.quarantine.action) == (95, "RESET_GPU")
    assert watch.reason is not None
    assert (watch.reason.code, watch.reason.xid) == (ReasonCode.GPU_NEEDS_RESET, 95)


def test_a_daemon_that_an_operator_stopped_stays_stopped(remembered: StoredState) -> None:
    assert remembered.watchdog_states["stopped"].stopped_at == 1795187000.0


def test_an_open_incident_stays_open(remembered: StoredState) -> None:
    (incident,) = remembered.incidents
    assert incident.open
    assert (incident.server, incident.affected) == (40225, (40209,))
    assert [each.client.pid for each in incident.suspects] == [40300, 40209]
    assert [each.confidence for each in incident.suspects] == [0.96, 0.04]
    assert incident.suspects[0].indications[:2] == (
        Reason(ReasonCode.CONTEXTS_ENDED_BEFORE_FAULT, seconds=0.12),
        Reason(ReasonCode.INSTRUCTION_FETCH_FAILED, hits=85, trials=85),
    )


def test_events_have_codes(remembered: StoredState) -> None:
    reasons = [each.reason for each in remembered.events if isinstance(each.reason, Reason)]
    assert Reason(ReasonCode.RESTARTS_DID_NOT_HELP, count=1, seconds=900.0) in reasons
    diagnosed = [each for each in remembered.events if each.event is EventName.DAEMON_DIAGNOSED and each.reason]
    assert all(each.indications is not None and each.indications[0] == each.reason for each in diagnosed)
    of_suspects = (suspect for each in remembered.events if each.incident for suspect in each.incident.suspects)
    known = [*reasons, *(reason for suspect in of_suspects for reason in suspect.indications)]
    assert ReasonCode.UNKNOWN not in {each.code for each in known}


def test_the_totals_are_the_same_to_the_last_unit(remembered: StoredState) -> None:
    books = remembered.usage_totals.gpus
    assert {gpu: (book.total.sm_us, book.total.energy_mj) for gpu, book in books.items()} == SM_US_AND_MILLIJOULES
    assert sum(len(book.by_account) for book in books.values()) == 27
    assert sum(sum(book.memory_byte_ms.values()) for book in books.values()) == 39176519024640000
