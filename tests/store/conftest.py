"""Fixtures of the tests of the state file."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.store import writer
from exporter.store.database import StateFile
from tests.builders import AT
from tests.clocks import HandClock
from tests.eventually import PATIENCE_SECONDS
from tests.store.values import RETENTION


@pytest.fixture
def clock() -> HandClock:
    return HandClock(AT)


@pytest.fixture
def state_file(tmp_path: Path, clock: HandClock) -> Iterator[StateFile]:
    made = StateFile(tmp_path, RETENTION, clock)
    made.open()
    yield made
    made.close()


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let writers wait longer, for a busy machine."""
    monkeypatch.setattr(writer, "LOAD_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(writer, "CLOSE_SECONDS", PATIENCE_SECONDS)
