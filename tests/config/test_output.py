"""The output of --config.check is a file with the same configuration."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.cli import main
from exporter.config.options import OPTIONS
from exporter.config.reference import as_toml, toml
from exporter.config.settings import Config, DaemonConfig
from tests.config.reading import config, document, written
from tests.config.test_daemons import TWO
from tests.config.test_options import meant


def everything_changed() -> Config:
    changed = config("serve", "--pipe-directory", '/tmp/"a\\b"/ü', "--log-directory", "/tmp/\x7f/\n")
    for option in OPTIONS:
        changed = option.set(changed, meant(option))
    return changed


@pytest.mark.parametrize("made", [config("serve"), everything_changed()], ids=["defaults", "everything"])
def test_the_printed_configuration_gives_the_same_one(made: Config, tmp_path: Path) -> None:
    again = config("serve", "--config.file", written(tmp_path, as_toml(made)))
    assert as_toml(again) == as_toml(made)
    assert again == made


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


def test_check_of_an_unusable_configuration_exits_with_2(tmp_path: Path) -> None:
    assert main(["serve", "--config.check", "--config.file", written(tmp_path, "[web]\nx = 1")]) == 2


def test_prints_a_path_that_is_not_utf8(tmp_path: Path) -> None:
    daemon = DaemonConfig(pipe_directory=Path("/caf\udce9"), log_directory=tmp_path)
    assert 'pipe_directory = "/caf?"' in as_toml(Config(daemons=(daemon,)))


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_any_text_round_trips(text: str) -> None:
    (daemon,) = document(f"[[daemons]]\nname = {toml(text)}").daemons
    assert daemon["name"] == text
