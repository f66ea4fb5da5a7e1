"""What several sources' tests need."""

from collections.abc import Iterator

import pytest

from tests.sources.nvml_program import NvmlProgram, Start
from tests.standin.nvml import NvmlStandIn


@pytest.fixture
def nvml_program() -> Iterator[Start]:
    """Starts the program that looks at a driver."""
    started: list[NvmlProgram] = []

    def start(standin: NvmlStandIn | None = None, **environment: str) -> NvmlProgram:
        started.append(NvmlProgram(environment if standin is None else standin.environment() | environment))
        return started[-1]

    yield start
    for each in started:
        each.close()
