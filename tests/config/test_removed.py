"""A removed option or key is an error that names the replacement."""

from pathlib import Path

import pytest

from exporter.cli import parse_arguments
from exporter.config.options import DAEMON_KEYS, DAEMONS, OPTIONS, REMOVED
from exporter.errors import ConfigError
from tests.config.reading import config, document, written

KEYS = [name for name in REMOVED if not name.startswith(("-", "CUDA_", f"{DAEMONS}."))]


def test_no_removed_name_is_in_use() -> None:
    used = {name for option in OPTIONS for name in (option.key, option.name, option.variable)}
    used |= {f"{DAEMONS}.{each.key}" for each in DAEMON_KEYS}
    assert not used & REMOVED.keys()


@pytest.mark.parametrize("key", KEYS)
def test_names_the_replacement_of_a_removed_key(key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        document(f"{key} = 1")
    assert str(refused.value) == f"config.toml: {key} was removed: {REMOVED[key]}; remove it"


@pytest.mark.parametrize("variable", [name for name in REMOVED if name.startswith("CUDA_")])
def test_names_the_replacement_of_a_removed_variable(variable: str) -> None:
    with pytest.raises(ConfigError) as refused:
        config("serve", **{variable: "1"})
    assert str(refused.value) == f"{variable} was removed: {REMOVED[variable]}; remove it"


@pytest.mark.parametrize("flag", [name for name in REMOVED if name.startswith("--")])
def test_names_the_replacement_of_a_removed_flag(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ((flag,), (f"{flag}=1",), (flag, "1")):
        with pytest.raises(SystemExit) as ended:
            parse_arguments(("serve", *words))
        assert ended.value.code == 2
        assert capsys.readouterr().err.endswith(f"error: {flag} was removed: {REMOVED[flag]}; remove it\n")


@pytest.mark.parametrize("key", [name for name in REMOVED if name.startswith(f"{DAEMONS}.")])
def test_names_the_replacement_of_a_removed_key_of_a_daemon(key: str, tmp_path: Path) -> None:
    text = f"[[daemons]]\npipe_directory = '/a'\n{key.partition('.')[2]} = 1"
    with pytest.raises(ConfigError, match=rf"daemons\[1\]: {key} was removed: .*; remove it$"):
        config("serve", "--config.file", written(tmp_path, text))


def test_names_an_empty_removed_section() -> None:
    with pytest.raises(ConfigError, match=r"^config.toml: section \[rhythm\] was removed; remove it$"):
        document("[rhythm]\n")


def test_names_the_fixed_interval_of_a_removed_option() -> None:
    with pytest.raises(ConfigError, match=r"rhythm\.nvml_seconds was removed: the interval is always 10 s; remove it"):
        document("[rhythm]\nnvml_seconds = 1")


def test_the_help_of_serve_fits_on_a_page(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        parse_arguments(("serve", "--help"))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 80
    assert max(map(len, lines)) <= 80
