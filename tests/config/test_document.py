"""The configuration file: what is refused says where, and what would be right; no file can break the program."""

import os
from pathlib import Path

import pytest
from exporter.config.document import MOST_BYTES
from hypothesis import given
from hypothesis import strategies as st

from exporter.cli import main
from exporter.errors import ConfigError
from tests.config.reading import config, document, written

WRONG = (
    ("[web]\nlisten_adress = [':1']", "[web] 'listen_adress': unknown key; did you mean listen_address?"),
    ("[wbe]\n", "'wbe': unknown section; did you mean web?"),
    ("[daemon]\n", "'daemon': unknown section; did you mean daemons?"),
    ("[web]\nlevel = 'info'", "[web] 'level': unknown key; it belongs to [log]"),
    ("zzz = 1", "'zzz': unknown section"),
    ("web = 1", "web: this is a section; write [web] and its keys below"),
    ("[[web]]\n", "web: this is a section; write [web] and its keys below"),
    ("[web]\nlisten_address = ':1'", "web.listen_address: ':1' is no list; write it in brackets"),
    ("[web]\nlisten_address = []", "web.listen_address: 0 of them; name 1 to 64"),
    ("[web]\nlisten_address = [1]", "web.listen_address: 1 is no string; write it in quotes"),
    ("[web]\nlisten_address = [':1', ':1']", "web.listen_address: ':1' stands there twice"),
    ("[web]\nlisten_address = ['here']", "web.listen_address: 'here' is no address; write HOST:PORT or :PORT"),
    ("[web]\nmax_requests = 0", "web.max_requests: 0 is not from 1 to 1000"),
    ("[web]\nmax_requests = true", "web.max_requests: True is no whole number"),
    ("[web]\nmax_requests = 1.0", "web.max_requests: 1.0 is no whole number"),
    (f"[web]\nmax_requests = 0x{'f' * 9000}", "web.max_requests: something of that size is not from 1 to 1000"),
    ("[web]\ntelemetry_path = 'metrics'", "web.telemetry_path: 'metrics' is no path of a page"),
    ("[web]\ntelemetry_path = '/-/healthy'", "web.telemetry_path: /-/healthy is another page already"),
    ("[web]\nsystemd_socket = 'yes'", "web.systemd_socket: 'yes' is neither true nor false"),
    ("[web]\nconfig_file = ''", "web.config_file: '' is empty"),
    ("[log]\nlevel = 'loud'", "log.level: 'loud' is none of debug, info, warning, error"),
    ("[clients]\nmin_age_seconds = '15s'", "clients.min_age_seconds: '15s' is no number of seconds"),
    ("[clients]\nmin_age_seconds = -1", "clients.min_age_seconds: -1 s is not from 0 s to 1e+09 s"),
    ("[clients]\nmin_age_seconds = nan", "clients.min_age_seconds: nan is no number of seconds"),
    ("[clients]\nmin_age_seconds = inf", "clients.min_age_seconds: inf is no number of seconds"),
    (f"[clients]\nmin_age_seconds = 0x{'f' * 9000}", "clients.min_age_seconds: something of that size is no number"),
    ("[clients]\nmin_age = 15", "[clients] 'min_age': unknown key; did you mean min_age_seconds?"),
    ("[discovery]\nglobs = ['tmp/*']", "discovery.globs: 'tmp/*' is no absolute path"),
    ("[collect]\npods = 'maybe'", "collect.pods: 'maybe' is none of true, false and \"auto\""),
    ("[collect]\npods = 1", 'collect.pods: 1 is none of true, false and "auto"'),
    ("[rhythm]\nliveness_seconds = 0.1", "rhythm.liveness_seconds: 0.1 s is not from 1 s to 300 s"),
    ("[paths]\nprocfs = 'proc'", "paths.procfs: 'proc' is no absolute path"),
    ('[paths]\npods = "/a\\u0000"', "paths.pods: '/a\\x00' is no absolute path"),
    ("[paths]\ncontrol_executable = 'bin/mps'", "paths.control_executable: 'bin/mps' is no absolute path"),
    ("[log]\nlevel =", "no TOML: Invalid value (at end of document)"),
    ("[log]\nlevel = 'info'\nlevel = 'info'\n\n", "no TOML: Cannot overwrite a value (at line 3, column 15)"),
    (f"x = {'[' * 5000}", "no TOML that can be read"),
    (f"x = {'9' * 5000}", "no TOML that can be read"),
    (f"[web]\nmax_requests{'.a' * 5000} = 1", "web.max_requests: "),
    ('"a\\nb" = 1', "'a\\nb': unknown section"),
)
"""What a file says, and how the refusal goes on after the file's name."""


@pytest.mark.parametrize(("text", "problem"), WRONG, ids=[problem[:60] for _, problem in WRONG])
def test_what_cannot_be_used_is_refused_by_file_and_place(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        document(text)
    assert str(refused.value).startswith(f"config.toml: {problem}")
    assert str(refused.value).isprintable(), "on one line"


def test_a_refused_file_ends_the_program_with_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, "[web]\nlisten_adress = [':1']")
    assert main(["serve", "--config.file", path]) == 2
    assert capsys.readouterr().err.startswith(f"cuda-mps-exporter: {path}: [web] 'listen_adress': unknown key")


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (("--rhythm.liveness=60s", "--rhythm.lists=30s"), "^rhythm.lists_seconds: 30 is less than"),
    ],
)
def test_what_cannot_be_meant_together_is_refused(flags: tuple[str, ...], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        config("serve", *flags)


def refused_file(path: Path) -> str:
    with pytest.raises(ConfigError) as refused:
        config("serve", "--config.file", str(path))
    assert str(refused.value).startswith(f"{path}: ")
    return str(refused.value).removeprefix(f"{path}: ")


def test_a_named_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert refused_file(tmp_path / "none.toml") == "there is no such file"


def test_a_file_that_is_none_is_refused_and_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert refused_file(tmp_path / "pipe") == "is no regular file"
    assert refused_file(tmp_path) == "is no regular file"
    assert refused_file(Path("/dev/zero")) == "is no regular file"
    assert refused_file(tmp_path / "nul\0byte") == "cannot be read: embedded null byte"


def test_a_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "#" * (MOST_BYTES + 1))
    assert refused_file(Path(path)) == f"is larger than {MOST_BYTES} bytes"


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(b"# caf\xe9\n")
    assert refused_file(path) == "is no UTF-8 text, at byte 5"


def test_a_file_that_cannot_be_read_is_refused() -> None:
    """Not even root can read this one from its beginning."""
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
