"""What the tests of terminals share."""

from collections.abc import Iterator

import pytest

from tests.terminal.pseudo_terminal import Pseudo, pseudo


@pytest.fixture
def pty() -> Iterator[Pseudo]:
    """A terminal of 80 columns and 24 lines."""
    with pseudo() as made:
        yield made
