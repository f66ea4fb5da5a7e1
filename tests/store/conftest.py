"""Fixtures of the tests of the state file."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.model.settings import Retention
from exporter.store.database import StateFile
from tests.builders import AT
from tests.clocks import HandClock


@pytest.fixture
def clock() -> HandClock:
    return HandClock(AT)


@pytest.fixture
def state_file(tmp_path: Path, clock: HandClock) -> Iterator[StateFile]:
    """An open state file."""
    made = StateFile(tmp_path, Retention(), clock)
    made.open()
    yield made
    made.close()
