"""The configuration file: an error names the place and the valid values, and no file can break the program."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.cli import main
from exporter.config.load import MAX_BYTES
from exporter.errors import ConfigError
from tests.config.reading import config, document, written

WRONG = (
    ("[web]\nlisten_adress = [':1']", "web: unknown key 'listen_adress'; did you mean listen_address?"),
    ("[wbe]\n", "unknown section 'wbe'; did you mean web?"),
    ("[daemon]\n", "unknown section 'daemon'; did you mean daemons?"),
    ("[web]\nlevel = 'info'", "web: unknown key 'level'; it belongs to [log]"),
    ("zzz = 1", "unknown section 'zzz'"),
    ("web = 1", "web: expected a section: write [web] and its keys below"),
    ("[[web]]\n", "web: expected a section: write [web] and its keys below"),
    ("[web]\nlisten_address = ':1'", "web.listen_address: invalid value ':1': expected a list in brackets"),
    ("[web]\nlisten_address = []", "web.listen_address: invalid value []: expected 1 to 64 entries"),
    ("[web]\nlisten_address = [1]", "web.listen_address: invalid value 1: expected HOST:PORT or :PORT"),
    ("[web]\nlisten_address = [':1', ':1']", "web.listen_address: invalid value ':1': duplicate entry"),
    ("[web]\nlisten_address = ['here']", "web.listen_address: invalid value 'here': expected HOST:PORT or :PORT"),
    ("[web]\nmax_requests = 0", "web.max_requests: invalid value 0: expected an integer from 1 to 1000"),
    ("[web]\nmax_requests = true", "web.max_requests: invalid value True: expected an integer from 1 to 1000"),
    ("[web]\nmax_requests = 1.0", "web.max_requests: invalid value 1.0: expected an integer from 1 to 1000"),
    (f"[web]\nmax_requests = 0x{'f' * 9000}", "web.max_requests: invalid value (too large to show): expected an"),
    ("[web]\ntelemetry_path = 'metrics'", "web.telemetry_path: invalid value 'metrics': expected a path such as"),
    (
        "[web]\ntelemetry_path = '/-/healthy'",
        "web.telemetry_path: invalid value '/-/healthy': expected a path such as /metrics, where",
    ),
    ("[web]\nsystemd_socket = 'yes'", "web.systemd_socket: invalid value 'yes': expected true or false"),
    (
        "[web]\nconfig_file = ''",
        "web.config_file: invalid value '': expected a string of 1 to 4096 printable characters",
    ),
    ("[log]\nlevel = 'loud'", "log.level: invalid value 'loud': expected one of debug, info, warning, error"),
    (
        "[clients]\nmin_age_seconds = '15s'",
        "clients.min_age_seconds: invalid value '15s': expected a number of",
    ),
    ("[clients]\nmin_age_seconds = -1", "clients.min_age_seconds: invalid value -1: expected a number of seconds from"),
    ("[clients]\nmin_age_seconds = nan", "clients.min_age_seconds: invalid value nan: expected a number of seconds"),
    ("[clients]\nmin_age_seconds = inf", "clients.min_age_seconds: invalid value inf: expected a number of seconds"),
    (f"[clients]\nmin_age_seconds = 0x{'f' * 9000}", "clients.min_age_seconds: invalid value (too large to show)"),
    ("[clients]\nmin_age = 15", "clients: unknown key 'min_age'; did you mean min_age_seconds?"),
    ("[watchdog]\nallow = ['all']", "watchdog.allow: invalid value 'all': expected one of kill_clients, shut_down"),
    ("[watchdog]\nallow = 'kill_clients'", "watchdog.allow: invalid value 'kill_clients': expected a list in brackets"),
    ("[paths]\nstate_directory = 'x'", "paths.state_directory: invalid value 'x': expected an absolute path"),
    ('[paths]\nstate_directory = "/a\\u0000"', "paths.state_directory: invalid value '/a\\x00': expected an absolute"),
    ("[log]\nlevel =", "invalid TOML: Invalid value (at end of document)"),
    ("[log]\nlevel = 'info'\nlevel = 'info'\n\n", "invalid TOML: Cannot overwrite a value (at line 3, column 15)"),
    (f"x = {'[' * 5000}", "invalid TOML: a number is too long, or"),
    (f"x = {'9' * 5000}", "invalid TOML: a number is too long, or"),
    (f"[web]\nmax_requests{'.a' * 5000} = 1", "web.max_requests: invalid value "),
    ('"a\\nb" = 1', "unknown section 'a\\nb'"),
)
"""The text of a file, and the error after the file's name."""


def test_refuses_an_unusable_value_and_names_file_and_place(subtests: pytest.Subtests) -> None:
    for text, problem in WRONG:
        with subtests.test(text=text, problem=problem):
            with pytest.raises(ConfigError) as refused:
                document(text)
            assert str(refused.value).startswith(f"config.toml: {problem}")
            assert str(refused.value).isprintable(), "on one line"


def test_a_refused_file_exits_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, "[web]\nlisten_adress = [':1']")
    assert main(["serve", "--config.file", path]) == 2
    assert capsys.readouterr().err.startswith(f"cuda-mps-exporter: {path}: web: unknown key 'listen_adress'")


def refused_file(path: Path) -> str:
    with pytest.raises(ConfigError) as refused:
        config("serve", "--config.file", str(path))
    assert str(refused.value).startswith(f"{path}: ")
    return str(refused.value).removeprefix(f"{path}: ")


def test_refuses_a_named_file_that_does_not_exist(tmp_path: Path) -> None:
    assert refused_file(tmp_path / "none.toml") == "no such file"


def test_refuses_a_fifo_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert refused_file(tmp_path / "pipe") == "not a regular file"
    assert refused_file(tmp_path) == "not a regular file"
    assert refused_file(Path("/dev/zero")) == "not a regular file"
    assert refused_file(tmp_path / "nul\0byte") == "cannot be read: embedded null byte"


def test_refuses_a_file_that_is_too_large(tmp_path: Path) -> None:
    path = written(tmp_path, "#" * (MAX_BYTES + 1))
    assert refused_file(Path(path)) == f"larger than {MAX_BYTES} bytes"


def test_refuses_a_file_that_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(b"# caf\xe9\n")
    assert refused_file(path) == "not UTF-8 text, at byte 5"


def test_refuses_an_unreadable_file() -> None:
    """Not even root can read the beginning of this one."""
    assert refused_file(Path("/proc/self/mem")) == "cannot be read: Input/output error"


names = st.sampled_from(["web", "log", "daemons", "clients", "collect", "discovery", "rhythm", "paths", "x"])


keys = st.sampled_from(["max", "level", "globs", "nvml", "procfs", "min_age_seconds", "y"])


def problem_of(text: str) -> str:
    try:
        document(text)
    except ConfigError as problem:
        return str(problem)
    return ""


@given(st.text())
def test_any_text_is_a_configuration_or_refused_on_one_line(text: str) -> None:
    assert problem_of(text).isprintable()


@given(names, keys, st.text(max_size=30))
def test_any_value_is_used_or_refused_on_one_line(section: str, key: str, value: str) -> None:
    assert problem_of(f"[{section}]\n{key} = {value}").isprintable()


def test_reads_a_file_with_a_byte_order_mark(tmp_path: Path) -> None:
    file = written(tmp_path, '\ufeff[log]\nlevel = "debug"\n')
    assert config("serve", "--config.file", file).log_level == "debug"
