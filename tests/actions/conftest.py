"""What several tests of the hands need."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tools import not_here


@pytest.fixture
def everybodys() -> Iterator[Path]:
    """A directory that other users may write to; pytest's own are for their owner alone."""
    if os.geteuid() != 0:
        not_here("only root can start a process as somebody else")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        path.chmod(0o777)
        yield path
