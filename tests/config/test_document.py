"""The configuration file: an error names the place and the valid values, and no file can break the program."""

import os
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.config.checks import MAX_NAME
from exporter.config.load import MAX_BYTES
from exporter.errors import ConfigError
from tests.config.reading import config, document, written

ENDLESS = f"0x{'f' * 9000}"
INVALID = (
    ("web.listen_address", "expected a list in brackets", ("':1'",)),
    ("web.listen_address", "expected 1 to 64 entries", ("[]",)),
    ("web.listen_address", "expected HOST:PORT or :PORT", ("[1]", "['here']")),
    ("web.max_requests", "expected an integer from 1 to 1000", ("0", "true", "1.0", ENDLESS)),
    ("web.telemetry_path", "expected a path such as /metrics", ("'metrics'", "'/-/healthy'")),
    ("web.systemd_socket", "expected true or false", ("'yes'", "1")),
    ("web.config_file", "expected a string of 1 to 4096 printable characters", ("''", "1")),
    ("log.level", "expected one of debug, info, warning, error", ("'loud'", "1", "[]")),
    ("clients.min_age_seconds", "expected a number of seconds from", ("'15s'", "-1", "nan", "inf", "true", ENDLESS)),
    ("kubernetes.pod_labels", "expected a list in brackets", ("'team'",)),
    (
        "kubernetes.pod_labels",
        "expected the key of a pod label, such as team",
        [f"['{key}']" for key in ("", "*", "team.", "/team", "Example.com/team", "a/b/c", "t" * 64, "té", "team ")],
    ),
    ("watchdog.allow", "expected one of kill_clients, shut_down_server", ("['all']",)),
    ("watchdog.allow", "expected a list in brackets", ("'kill_clients'",)),
    ("slurm.trusted_namespaces", "expected a namespace of Kubernetes", ("['slurm*']", "['']", "['a_b']", "['a.b']")),
    ("paths.state_directory", "expected an absolute path", ("'x'", '"/a\\u0000"')),
    ("daemons.pipe_directory", "expected an absolute path", ("'a'", "1")),
    ("daemons.pipe_directory", "the path of a socket there has over 107 bytes", (f"'/{'x' * 90}'",)),
    ("daemons.name", "expected a string of 1 to 128 printable", ("''", '"a\\nb"', f"'{'n' * (MAX_NAME + 1)}'", "'-a'")),
    (
        "daemons.unit",
        "expected a service that runs nothing else, such as nvidia-cuda-mps.service",
        ("'mps'", "'-mps.service'", "'slurmd.service'"),
    ),
    ("daemons.user", "there is no such user", ("'no-such-user'", "-1", str(2**32 - 1))),
    ("daemons.user", "expected a string", ("true", ENDLESS)),
    ("daemons.active_thread_percentage", "expected a number above 0", ("0", "100.1", "nan", "true", "'40'", ENDLESS)),
    (
        "daemons.pinned_memory_limits",
        "expected a device and a size, such as 0=2G or 1=512M",
        [f"['{limit}']" for limit in ("2G", "0=2", "0=2K", "0=0G", "64=2G", "0=2G ", "0=999999999999G")],
    ),
    ("daemons.watchdog", "expected one of observe, act", ("'on'",)),
    ("daemons.restart_command", "expected a list in brackets", ("'mps'",)),
    ("daemons.restart_command", "expected 1 to 64 entries", ("[]",)),
    ("daemons.restart_command", "expected a string of 1 to 4096", ("['']",)),
)
"""Keys, the end of their error, and values that are unusable."""

UNUSABLE = (
    ("web.listen_adress = [':1']", "web: unknown key 'listen_adress'; did you mean listen_address?"),
    ("clients.min_age = 15", "clients: unknown key 'min_age'; did you mean min_age_seconds?"),
    ("web.level = 'info'", "web: unknown key 'level'; it belongs to [log]"),
    ("[wbe]\n", "unknown section 'wbe'; did you mean web?"),
    ("[daemon]\n", "unknown section 'daemon'; did you mean daemons?"),
    ("zzz = 1", "unknown section 'zzz'"),
    ("web.listen_address = [':1', ':1']", "web.listen_address: invalid value ':1': duplicate entry"),
    # Both would be the metric label label_cost_centre.
    (
        "kubernetes.pod_labels = ['cost-centre', 'costCentre']",
        "kubernetes.pod_labels: invalid value 'costCentre': duplicate entry",
    ),
    (
        "[[daemons]]\npinned_memory_limits = ['0=2G', '1=2G', '0=3G']",
        "daemons[1].pinned_memory_limits: invalid value '0=3G': duplicate entry",
    ),
    (
        "[[daemons]]\nrestart_command = ['env', 'A=1', 'CUDA_MPS_PIPE_DIRECTORY=/b', 'mps']",
        "daemons[1].restart_command: invalid value 'CUDA_MPS_PIPE_DIRECTORY=/b': the variable is set by pipe_directory",
    ),
    ('"a\\nb" = 1', "unknown section 'a\\nb'"),
    ("web = 1", "web: expected a section: write [web] and its keys below"),
    ("[[web]]\n", "web: expected a section: write [web] and its keys below"),
    ("[log]\nlevel =", "invalid TOML: Invalid value (at end of document)"),
    ("[log]\nlevel = 'info'\nlevel = 'info'\n\n", "invalid TOML: Cannot overwrite a value (at line 3, column 15)"),
    (f"x = {'[' * 5000}", "invalid TOML: a number is too long, or"),
    (
        f"web.max_requests{'.a' * 5000} = 1",
        # Python 3.14 limits the parts of a key.
        "web.max_requests: invalid value " if sys.version_info < (3, 14) else "invalid TOML: a number is too long, or",
    ),
    (f"x = {'9' * 5000}", "invalid TOML: a number is too long, or"),
)
"""The text of a file, and the error after the file's name."""


def assert_refused(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        document(text)
    assert str(refused.value).startswith(f"config.toml: {problem}")
    assert str(refused.value).isprintable(), "on one line"


def test_refuses_an_unusable_value_and_names_file_key_and_value(subtests: pytest.Subtests) -> None:
    for key, expected, values in INVALID:
        for value in values:
            with subtests.test(key=key, value=value):
                text = f"{key} = {value}".replace("daemons.", "[[daemons]]\n")
                raw = tomllib.loads(f"raw = {value}")["raw"]
                wrong = raw[0] if isinstance(raw, list) and raw and "list" not in expected else raw
                shown = "(too large to show)" if value == ENDLESS else repr(wrong)
                place = key.replace("daemons.", "daemons[1].")
                assert_refused(text, f"{place}: invalid value {shown}: {expected}")


def test_refuses_an_unusable_file_and_names_its_place(subtests: pytest.Subtests) -> None:
    for text, problem in UNUSABLE:
        with subtests.test(text=text):
            assert_refused(text, problem)


def test_refuses_a_file_that_cannot_be_read_without_waiting(subtests: pytest.Subtests, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "latin1").write_bytes(b"# caf\xe9\n")
    written(tmp_path, "\u00e9" * MAX_BYTES, "large")
    for path, problem in {
        tmp_path / "none.toml": "no such file",
        tmp_path / "pipe": "not a regular file",
        tmp_path: "not a regular file",
        Path("/dev/zero"): "not a regular file",
        tmp_path / "nul\0byte": "cannot be read: ",
        tmp_path / "large": f"larger than {MAX_BYTES} bytes",
        tmp_path / "latin1": "not UTF-8 text, at byte 5",
        # Not even root can read the beginning of this one.
        Path("/proc/self/mem"): "cannot be read: Input/output error",
    }.items():
        with subtests.test(path=str(path)):
            with pytest.raises(ConfigError) as refused:
                config("serve", "--config.file", str(path))
            assert str(refused.value).startswith(f"{path}: {problem}")


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
