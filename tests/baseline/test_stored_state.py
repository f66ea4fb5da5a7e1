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
def stored(tmp_path: Path) -> StoredState:
    (tmp_path / FILE).write_bytes(gzip.decompress((HERE / "state_version_4.sqlite.gz").read_bytes()))
    state_file = StateFile(tmp_path, Retention(max_age=1e9), HandClock(1795187400.0))
    found = state_file.open()
    state_file.close()
    return found


def test_no_row_is_lost(stored: StoredState) -> None:
    assert stored.unreadable == 0
    assert stored.complete
    assert len(stored.events) == 126


def test_an_open_circuit_stays_open(stored: StoredState) -> None:
    state = stored.watchdog_states["with-open-circuit"]
    assert state.phase is WatchdogPhase.CIRCUIT_OPEN
    assert state.circuit_opened_at == 1795186926.0
    assert state.restarts == (1795186921.0,)
    assert state.limits is not None
    assert state.limits.pinned_memory == {0: 16 << 30}
    assert state.diagnosis is not None
    assert state.diagnosis.condition is Condition.CRASHED
    assert state.diagnosis.indications == (
        Reason(ReasonCode.PROCESS_GONE, pid=40938),
        Reason(ReasonCode.NO_DAEMON_FOUND),
        Reason(ReasonCode.LOG_ENDS_WITHOUT_QUIT),
        Reason(ReasonCode.PID_FILE_LEFT),
    )
    assert state.reason == Reason(ReasonCode.RESTARTS_DID_NOT_HELP, count=1, seconds=900.0)
    assert [(each.kind, each.reason, each.result, each.count) for each in state.action_counts] == [
        (ActionKind.RESTART, ActionReason.CRASHED, ActionResult.SUCCEEDED, 1),
        (ActionKind.SET_LIMITS, ActionReason.LIMITS_LOST, ActionResult.SUCCEEDED, 1),
    ]


def test_a_quarantine_stays(stored: StoredState) -> None:
    state = stored.watchdog_states["in-quarantine"]
    assert state.phase is WatchdogPhase.QUARANTINED
    assert state.quarantine is not None
    assert (state.quarantine.xid, state.quarantine.action) == (95, "RESET_GPU")
    assert state.reason is not None
    assert (state.reason.code, state.reason.xid) == (ReasonCode.GPU_NEEDS_RESET, 95)


def test_a_daemon_that_an_operator_stopped_stays_stopped(stored: StoredState) -> None:
    assert stored.watchdog_states["stopped"].stopped_at == 1795187000.0


def test_an_open_incident_stays_open(stored: StoredState) -> None:
    (incident,) = stored.incidents
    assert incident.open
    assert (incident.server, incident.affected) == (40225, (40209,))
    assert [each.client.pid for each in incident.suspects] == [40300, 40209]
    assert [each.confidence for each in incident.suspects] == [0.96, 0.04]
    assert incident.suspects[0].indications[:2] == (
        Reason(ReasonCode.CONTEXTS_ENDED_BEFORE_FAULT, seconds=0.12),
        Reason(ReasonCode.INSTRUCTION_FETCH_FAILED, hits=85, trials=85),
    )


def test_events_have_codes(stored: StoredState) -> None:
    reasons = [each.reason for each in stored.events if isinstance(each.reason, Reason)]
    assert Reason(ReasonCode.RESTARTS_DID_NOT_HELP, count=1, seconds=900.0) in reasons
    diagnosed = [each for each in stored.events if each.event is EventName.DAEMON_DIAGNOSED and each.reason]
    assert all(each.indications is not None and each.indications[0] == each.reason for each in diagnosed)
    of_suspects = (suspect for each in stored.events if each.incident for suspect in each.incident.suspects)
    known = [*reasons, *(reason for suspect in of_suspects for reason in suspect.indications)]
    assert ReasonCode.UNKNOWN not in {each.code for each in known}


def test_the_totals_are_the_same_to_the_last_unit(stored: StoredState) -> None:
    totals = stored.usage_totals.gpus
    assert {gpu: (usage.total.sm_us, usage.total.energy_mj) for gpu, usage in totals.items()} == SM_US_AND_MILLIJOULES
    assert sum(len(usage.by_account) for usage in totals.values()) == 27
    assert sum(sum(usage.memory_byte_ms.values()) for usage in totals.values()) == 39176519024640000
