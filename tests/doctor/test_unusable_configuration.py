"""`nearest_config` omits the unusable parts of a configuration, and returns the error."""

from pathlib import Path

import pytest

from exporter.cli import parse_arguments
from exporter.doctor.command import nearest_config
from exporter.errors import ConfigError
from tests.config.reading import written

LONG = "/run/" + "x" * 90


def test_ignores_an_unusable_file(tmp_path: Path) -> None:
    file = written(tmp_path, "[log]\nlevl = 'debug'\n")
    arguments = parse_arguments(["doctor", "--config.file", file, "--path.state-directory=/host/state"])
    config, problem = nearest_config(arguments, {"RUNTIME_DIRECTORY": "/run/own"})
    assert (config.state_directory, config.runtime_directory) == (Path("/host/state"), Path("/run/own"))
    assert problem is not None
    assert "levl" in problem


def test_ignores_unusable_variables(tmp_path: Path) -> None:
    arguments = parse_arguments(["doctor", "--config.file=", "--log.level=error"])
    config, problem = nearest_config(arguments, {"CUDA_MPS_PIPE_DIRECTORY": LONG})
    assert (config.daemons, config.log_level) == ((), "error")
    assert problem is not None
    assert "107 bytes" in problem


def test_reports_an_unusable_flag() -> None:
    with pytest.raises(ConfigError, match="state-directory"):
        nearest_config(parse_arguments(["doctor", "--path.state-directory=state"]), {})
