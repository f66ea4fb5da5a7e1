"""The table of options: every option can be set in three ways, of which the nearest to the command counts."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from exporter.config.flags import default_text
from exporter.config.option import Option
from exporter.config.written import toml

from exporter.command_line import parse_arguments
from exporter.config import Attribution, Config, Switch, build_config
from exporter.config.options import DEFAULTS, OPTIONS
from exporter.model.settings import Accounting, FaultRemedy, Mode
from tests.config.reading import config, written

every_option = pytest.mark.parametrize("option", OPTIONS, ids=[option.key for option in OPTIONS])

OTHERS = {
    "web.listen_address": ("127.0.0.1:1,[::1]:2", '["127.0.0.1:1", "[::1]:2"]', (("127.0.0.1", 1), ("::1", 2))),
    "web.telemetry_path": ("/a/b", '"/a/b"', "/a/b"),
    "web.max_requests": ("7", "7", 7),
    "web.config_file": ("/etc/web.yml", '"/etc/web.yml"', Path("/etc/web.yml")),
    "web.systemd_socket": ("true", "true", True),
    "log.level": ("debug", '"debug"', "debug"),
    "log.format": ("logfmt", '"logfmt"', "logfmt"),
    "clients.min_age_seconds": ("1500ms", "1.5", 1.5),
    "clients.max": ("9", "9", 9),
    "clients.series": ("workload", '"workload"', "workload"),
    "discovery.enabled": ("no", "false", False),
    "discovery.globs": ("/a/*,/b", '["/a/*", "/b"]', ("/a/*", "/b")),
    "discovery.processes": ("0", "false", False),
    "collect.nvml": ("auto", '"auto"', Switch.AUTO),
    "collect.kernel_log": ("Yes", "true", Switch.ON),
    "collect.journal": ("false", "false", Switch.OFF),
    "collect.pods": ("off", "false", Switch.OFF),
    "rhythm.liveness_seconds": ("1m", "60", 60.0),
    "rhythm.lists_seconds": ("10m", "600", 600.0),
    "rhythm.nvml_seconds": ("0.5s", "0.5", 0.5),
    "attribution.method": ("bpf", '"bpf"', Attribution.BPF),
    "accounting.by": ("slurm_job", '"slurm_job"', Accounting.SLURM_JOB),
    "attribution.equal": ("yes", "true", True),
    "watchdog.mode": ("act", '"act"', Mode.ACT),
    "watchdog.hung_after_seconds": ("2m", "120", 120.0),
    "watchdog.restarts": ("3", "3", 3),
    "watchdog.window_seconds": ("1h", "3600", 3600.0),
    "watchdog.backoff_seconds": ("500ms", "0.5", 0.5),
    "watchdog.longest_backoff_seconds": ("1m", "60", 60.0),
    "watchdog.verify_seconds": ("10s", "10", 10.0),
    "watchdog.systemd_seconds": ("15s", "15", 15.0),
    "watchdog.fault_seconds": ("5m", "300", 300.0),
    "watchdog.fault_remedy": ("kill_clients", '"kill_clients"', FaultRemedy.KILL_CLIENTS),
    "watchdog.step_seconds": ("5s", "5", 5.0),
    "watchdog.end_hung_servers": ("true", "true", True),
    "history.max_age_seconds": ("24h", "86400", 86400.0),
    "history.max_incidents": ("8", "8", 8),
    "history.max_events": ("80", "80", 80),
    "paths.procfs": ("/host/proc", '"/host/proc"', Path("/host/proc")),
    "paths.kmsg": ("/host/kmsg", '"/host/kmsg"', Path("/host/kmsg")),
    "paths.pods": ("/host/pods", '"/host/pods"', Path("/host/pods")),
    "paths.control_executable": ("/opt/mps", '"/opt/mps"', "/opt/mps"),
    "paths.runtime_directory": ("/run/other", '"/run/other"', Path("/run/other")),
    "paths.lock_directory": ("/run/locks", '"/run/locks"', Path("/run/locks")),
    "paths.state_directory": ("/var/other", '"/var/other"', Path("/var/other")),
}
"""For each option: another value than its default, as text, in a file, and as it is meant."""


def meant(option: Option) -> object:
    return OTHERS[option.key][2]


def in_file(option: Option) -> str:
    return f"[{option.section}]\n{option.key_in_section} = {OTHERS[option.key][1]}\n"


def default_in_file(option: Option) -> str:
    return toml(option.kind.to_toml(option.of(DEFAULTS)))


def valid_default(option: Option) -> str:
    return "/else" if option.of(DEFAULTS) is None else default_text(option, "serve").replace(", ", ",")


@every_option
def test_its_default_is_the_one_of_the_configuration(option: Option) -> None:
    """No option has a default of its own that could differ."""
    assert option.of(config("serve")) == option.of(DEFAULTS) != meant(option)


@every_option
def test_a_file_sets_it(option: Option, tmp_path: Path) -> None:
    read = config("serve", "--config.file", written(tmp_path, in_file(option)))
    daemons = read.daemons if option.key == "discovery.enabled" else ()
    assert read == option.set(replace(config("serve"), daemons=daemons), meant(option)), "and nothing else"


@every_option
def test_a_variable_sets_it_and_outweighs_the_file(option: Option, tmp_path: Path) -> None:
    contrary = f"{option.section}.{option.key_in_section} = {default_in_file(option)}\n"
    path = written(tmp_path, contrary if option.of(DEFAULTS) is not None else "")
    read = config("serve", "--config.file", path, **{option.variable: OTHERS[option.key][0]})
    assert option.of(read) == meant(option)


@every_option
def test_a_flag_sets_it_and_outweighs_the_variable(option: Option) -> None:
    if option.kind.boolean:
        flags: tuple[str, ...] = ("--no-" + option.name[2:],)
        expected: object = Switch.OFF if isinstance(option.of(DEFAULTS), Switch) else False
        variable = "true"
    else:
        flags, expected, variable = (f"{option.name}={OTHERS[option.key][0]}",), meant(option), valid_default(option)
    assert option.of(config("serve", *flags, **{option.variable: variable})) == expected


@every_option
def test_an_empty_variable_sets_nothing(option: Option) -> None:
    assert config("serve", **{option.variable: ""}) == config("serve")


def test_no_two_options_share_a_name() -> None:
    for names in zip(*((o.name, o.variable, o.key, o.attribute) for o in OPTIONS), strict=True):
        assert max(Counter(names).values()) == 1


def test_a_list_is_a_flag_given_again() -> None:
    read = config("serve", "--web.listen-address", ":1", "--web.listen-address", "[::1]:2")
    assert read.listen == (("", 1), ("::1", 2))


def test_the_file_of_the_variable_is_read_and_that_of_the_flag_before_it(tmp_path: Path) -> None:
    debug = written(tmp_path, "[log]\nlevel = 'debug'", "debug.toml")
    error = written(tmp_path, "[log]\nlevel = 'error'", "error.toml")
    assert config("serve", CUDA_MPS_EXPORTER_CONFIG_FILE=debug).log_level == "debug"
    assert config("serve", "--config.file", error, CUDA_MPS_EXPORTER_CONFIG_FILE=debug).log_level == "error"
    assert config("serve", "--config.file=", CUDA_MPS_EXPORTER_CONFIG_FILE=debug).log_level == "info"


def config_with_default(path: Path, *arguments: str) -> Config:
    return build_config(parse_arguments(arguments), {}, default_file=path)


def test_the_default_file_is_read_where_there_is_one(tmp_path: Path) -> None:
    path = Path(written(tmp_path, "[log]\nlevel = 'debug'"))
    assert config_with_default(path, "serve").log_level == "debug"
    assert config_with_default(path, "serve", "--config.file=").log_level == "info"


def test_the_default_file_need_not_be_there(tmp_path: Path) -> None:
    assert config_with_default(tmp_path / "none.toml", "serve") == config("serve")


@pytest.mark.parametrize("command", [("replay", "--events", "-"), ("demo",)])
def test_what_does_not_watch_this_node_reads_no_file(command: tuple[str, ...], tmp_path: Path) -> None:
    """A recording tells the same on every machine."""
    path = Path(written(tmp_path, "[log]\nlevel = 'debug'\n[clients]\nmin_age_seconds = 99"))
    assert config_with_default(path, *command) == config(*command)


def test_a_command_that_a_person_reads_logs_less_where_nobody_says_otherwise() -> None:
    assert [config(*command).log_level for command in (("serve",), ("status",), ("replay", "--events", "-"))] == [
        "info",
        "warning",
        "warning",
    ]
    assert config("status", CUDA_MPS_EXPORTER_LOG_LEVEL="info").log_level == "info"


@pytest.mark.parametrize("kind", ["runtime", "state"])
def test_a_directory_is_the_one_that_systemd_made(kind: str) -> None:
    made = {f"{kind.upper()}_DIRECTORY": "/made/a:/made/b"}
    option = next(each for each in OPTIONS if each.attribute == f"{kind}_directory")
    assert option.of(config("serve", **made)) == Path("/made/a")
    assert option.of(config("serve", f"{option.name}=/else", **made)) == Path("/else")
