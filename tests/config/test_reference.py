"""The configuration as text: --config.check prints a file with the same configuration, and the page is complete."""

import os
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from docs.configuration_page import configuration_page
from exporter.cli import main
from exporter.config.load import as_toml, toml
from exporter.config.settings import Config, DaemonConfig
from tests.config.reading import config, written
from tests.config.test_daemons import TWO
from tests.config.test_options import OTHERS

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_printed_configuration_gives_the_same_one(subtests: pytest.Subtests, tmp_path: Path) -> None:
    everything = "\n".join(f"{key} = {value}" for key, (_, value, _) in OTHERS.items())
    daemons = f"{TWO}user = 0\nrestart_command = ['env', 'EMPTY=', '/opt/wait', '1', '1']\nwatchdog = 'act'\n"
    strange = ("--pipe-directory", '/tmp/"a\\b"/ü', "--log-directory", "/tmp/\x7f/\n")
    for name, text, flags in (("defaults", "", ()), ("everything", everything + daemons, ()), ("flags", "", strange)):
        with subtests.test(name):
            made = config("serve", "--config.file", written(tmp_path, text), *flags)
            assert config("serve", "--config.file", written(tmp_path, as_toml(made), "again.toml")) == made


def test_check_prints_the_configuration_and_serves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", {})
    path = written(tmp_path, TWO)
    assert main(["serve", "--config.file", path, "--config.check", "--log.level=error"]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    assert output.out == as_toml(config("serve", "--config.file", path, "--log.level=error"))
    assert 'level = "error"' in output.out
    assert {'# config_file = "…"', '# pod_labels = ["…"]'} <= set(output.out.splitlines())


def test_prints_a_path_that_is_not_utf8(tmp_path: Path) -> None:
    daemon = DaemonConfig(pipe_directory=Path("/caf\udce9"), log_directory=tmp_path)
    assert 'pipe_directory = "/caf?"' in as_toml(Config(daemons=(daemon,)))


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_any_text_round_trips(text: str) -> None:
    assert tomllib.loads(f"key = {toml(text)}") == {"key": text}


def test_the_page_matches_the_options() -> None:
    """If not: python -m docs."""
    assert PAGE.read_text() == configuration_page()
