"""The table of options: each option has a flag, a variable and a key of the file. The first of these wins."""

from collections import Counter
from pathlib import Path

import pytest

from exporter.cli import parse_arguments
from exporter.config.load import build_config
from exporter.config.options import DAEMON_KEYS, DEFAULTS, OPTIONS, Option
from exporter.config.reference import default_text, toml
from exporter.config.settings import Attribution, Config
from exporter.model.settings import AllowedAction, Mode
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
    "attribution.method": ("bpf", '"bpf"', Attribution.BPF),
    "watchdog.mode": ("act", '"act"', Mode.ACT),
    "watchdog.allow": (
        "kill_clients,end_hung_server",
        '["kill_clients", "end_hung_server"]',
        frozenset({AllowedAction.KILL_CLIENTS, AllowedAction.END_HUNG_SERVER}),
    ),
    "paths.runtime_directory": ("/run/other", '"/run/other"', Path("/run/other")),
    "paths.state_directory": ("/var/other", '"/var/other"', Path("/var/other")),
}
"""For each option, a value that is not the default: as text, in a file, and in the configuration."""


def meant(option: Option) -> object:
    return OTHERS[option.key][2]


def in_file(option: Option) -> str:
    return f"[{option.section}]\n{option.key_in_section} = {OTHERS[option.key][1]}\n"


def default_in_file(option: Option) -> str:
    return toml(option.kind.write(option.of(DEFAULTS)))


def valid_default(option: Option) -> str:
    default = default_text(option, "serve").replace(", ", ",")
    return {"web.config_file": "/else", "watchdog.allow": "restart_daemon"}.get(option.key, default)


def test_the_default_is_that_of_the_configuration(subtests: pytest.Subtests) -> None:
    """There is only one definition of a default."""
    for option in OPTIONS:
        with subtests.test(option=option):
            assert option.of(config("serve")) == option.of(DEFAULTS) != meant(option)


@every_option
def test_a_file_sets_the_option(option: Option, tmp_path: Path) -> None:
    read = config("serve", "--config.file", written(tmp_path, in_file(option)))
    assert read == option.set(config("serve"), meant(option)), "and nothing else"


@every_option
def test_a_variable_overrides_the_file(option: Option, tmp_path: Path) -> None:
    contrary = f"{option.section}.{option.key_in_section} = {default_in_file(option)}\n"
    path = written(tmp_path, contrary if option.of(DEFAULTS) is not None else "")
    read = config("serve", "--config.file", path, **{option.variable: OTHERS[option.key][0]})
    assert option.of(read) == meant(option)


def test_a_flag_overrides_the_variable(subtests: pytest.Subtests) -> None:
    for option in OPTIONS:
        with subtests.test(option=option):
            if option.kind.boolean:
                flags: tuple[str, ...] = ("--no-" + option.name[2:],)
                expected: object = False
                variable = "true"
            else:
                flags, expected, variable = (
                    (f"{option.name}={OTHERS[option.key][0]}",),
                    meant(option),
                    valid_default(option),
                )
            assert option.of(config("serve", *flags, **{option.variable: variable})) == expected


def test_an_empty_variable_sets_nothing(subtests: pytest.Subtests) -> None:
    for option in OPTIONS:
        with subtests.test(option=option):
            assert config("serve", **{option.variable: ""}) == config("serve")


def test_there_are_25_options_and_daemon_keys() -> None:
    """The two directories of a daemon and the file also have flags."""
    flags = {option.name for option in OPTIONS} | {"--config.file", "--pipe-directory", "--log-directory"}
    assert len(flags) + len(DAEMON_KEYS) == 25


def test_no_two_options_share_a_name() -> None:
    for names in zip(*((o.name, o.variable, o.key, o.attribute) for o in OPTIONS), strict=True):
        assert max(Counter(names).values()) == 1


def test_a_list_is_a_flag_given_again() -> None:
    read = config("serve", "--web.listen-address", ":1", "--web.listen-address", "[::1]:2")
    assert read.listen == (("", 1), ("::1", 2))


def test_the_flag_for_the_file_overrides_its_variable(tmp_path: Path) -> None:
    debug = written(tmp_path, "[log]\nlevel = 'debug'", "debug.toml")
    error = written(tmp_path, "[log]\nlevel = 'error'", "error.toml")
    assert config("serve", CUDA_MPS_EXPORTER_CONFIG_FILE=debug).log_level == "debug"
    assert config("serve", "--config.file", error, CUDA_MPS_EXPORTER_CONFIG_FILE=debug).log_level == "error"
    assert config("serve", "--config.file=", CUDA_MPS_EXPORTER_CONFIG_FILE=debug).log_level == "info"


def config_with_default(path: Path, *arguments: str) -> Config:
    return build_config(parse_arguments(arguments), {}, default_file=path)


def test_reads_the_default_file_if_it_exists(tmp_path: Path) -> None:
    path = Path(written(tmp_path, "[log]\nlevel = 'debug'"))
    assert config_with_default(path, "serve").log_level == "debug"
    assert config_with_default(path, "serve", "--config.file=").log_level == "info"


def test_the_default_file_need_not_be_there(tmp_path: Path) -> None:
    assert config_with_default(tmp_path / "none.toml", "serve") == config("serve")


@pytest.mark.parametrize("command", [("replay", "--events", "-"), ("demo",)])
def test_a_command_for_recordings_reads_no_file(command: tuple[str, ...], tmp_path: Path) -> None:
    """A recording replays identically on every machine."""
    path = Path(written(tmp_path, "[log]\nlevel = 'debug'\n[clients]\nmin_age_seconds = 99"))
    assert config_with_default(path, *command) == config(*command)


def test_interactive_commands_log_less_by_default() -> None:
    assert [config(*command).log_level for command in (("serve",), ("status",), ("replay", "--events", "-"))] == [
        "info",
        "warning",
        "warning",
    ]
    assert config("status", CUDA_MPS_EXPORTER_LOG_LEVEL="info").log_level == "info"


@pytest.mark.parametrize("kind", ["runtime", "state"])
def test_uses_the_directory_that_systemd_created(kind: str) -> None:
    made = {f"{kind.upper()}_DIRECTORY": "/made/a:/made/b"}
    option = next(each for each in OPTIONS if each.attribute == f"{kind}_directory")
    assert option.of(config("serve", **made)) == Path("/made/a")
    assert option.of(config("serve", f"{option.name}=/else", **made)) == Path("/else")


def test_a_flag_can_empty_a_list(tmp_path: Path) -> None:
    path = written(tmp_path, '[watchdog]\nallow = ["restart_daemon"]')
    assert config("serve", "--config.file", path).watchdog_allow == {AllowedAction.RESTART_DAEMON}
    assert config("serve", "--config.file", path, "--watchdog.allow=").watchdog_allow == frozenset()
