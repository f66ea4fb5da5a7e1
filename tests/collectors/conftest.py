"""Fixtures of the collector tests."""

from collections.abc import Iterator

import pytest

from tests.collectors.nvml_program import NvmlProgram, Start
from tests.standin.nvml import NvmlStandIn


@pytest.fixture
def nvml_program() -> Iterator[Start]:
    started: list[NvmlProgram] = []

    def start(standin: NvmlStandIn | None = None, **environment: str) -> NvmlProgram:
        started.append(NvmlProgram(environment if standin is None else standin.environment() | environment))
        started[-1].call("mapped")
        return started[-1]

    yield start
    for each in started:
        each.close()


@pytest.fixture
def program(request: pytest.FixtureRequest, nvml: NvmlStandIn, nvml_program: Start) -> NvmlProgram:
    """A program with a driver that has the file's GPU."""
    nvml.write([request.module.GPU])
    return nvml_program(nvml)
