"""Each option has a flag, a variable and a key of the file. The first of these wins."""

from collections import Counter
from pathlib import Path

import pytest

from exporter.cli import parse_arguments
from exporter.config.checks import plain
from exporter.config.load import build_config, default_text, toml
from exporter.config.settings import OPTIONS, Attribution, Config, Option
from exporter.errors import ConfigError
from exporter.model.settings import AllowedAction, Mode
from tests.config.reading import config, written

OTHERS = {
    "web.listen_address": ("127.0.0.1:1,[::1]:2", '["127.0.0.1:1", "[::1]:2"]', (("127.0.0.1", 1), ("::1", 2))),
    "web.telemetry_path": ("/a/b", '"/a/b"', "/a/b"),
    "web.max_requests": ("7", "7", 7),
    "web.config_file": ("/etc/web.yml", '"/etc/web.yml"', Path("/etc/web.yml")),
    "web.prometheus_url": ("http://[::1]:9090/", '"http://[::1]:9090/"', "http://[::1]:9090"),
    "web.grafana_url": ("https://g_1.example.com/a", '"https://g_1.example.com/a"', "https://g_1.example.com/a"),
    "web.systemd_socket": ("true", "true", True),
    "log.level": ("debug", '"debug"', "debug"),
    "log.format": ("logfmt", '"logfmt"', "logfmt"),
    "clients.min_age_seconds": ("1500ms", "1.5", 1.5),
    "attribution.method": ("bpf", '"bpf"', Attribution.BPF),
    "kubernetes.pod_labels": (
        "team,app.kubernetes.io/name",
        '["team", "app.kubernetes.io/name"]',
        ("team", "app.kubernetes.io/name"),
    ),
    "watchdog.mode": ("act", '"act"', Mode.ACT),
    "watchdog.allow": (
        "kill_clients,end_hung_server",
        '["kill_clients", "end_hung_server"]',
        frozenset({AllowedAction.KILL_CLIENTS, AllowedAction.END_HUNG_SERVER}),
    ),
    "slurm.trusted_namespaces": ("slurm,jobs", '["slurm", "jobs"]', ("slurm", "jobs")),
    "paths.runtime_directory": ("/run/other", '"/run/other"', Path("/run/other")),
    "paths.state_directory": ("/var/other", '"/var/other"', Path("/var/other")),
}
"""For each option, a value that is not the default: as text, in a file, and in the configuration."""

FOREIGN = ("ARGS", "SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_METRICS", "PORT", "PORT_10677_TCP",
           "PORT_10677_TCP_PROTO", "PORT_10677_TCP_PORT", "PORT_10677_TCP_ADDR")  # fmt: skip
"""Variables that the unit and Kubernetes set, without the prefix."""


def meant(option: Option) -> object:
    return OTHERS[option.key][2]


def valid_default(option: Option) -> str:
    default = default_text(option, "serve").replace(", ", ",")
    others = dict.fromkeys(("web.config_file", "slurm.trusted_namespaces"), "x")
    others |= dict.fromkeys(("web.prometheus_url", "web.grafana_url"), "http://x")
    return {**others, "watchdog.allow": "restart_daemon"}.get(option.key, default)


def test_a_file_sets_the_option_and_nothing_else(subtests: pytest.Subtests, tmp_path: Path) -> None:
    assert list(OTHERS) == [option.key for option in OPTIONS]
    for option in OPTIONS:
        with subtests.test(option=option.key):
            read = config("serve", "--config.file", written(tmp_path, f"{option.key} = {OTHERS[option.key][1]}"))
            assert {other.key for other in OPTIONS if other.of(read) != other.default} == {option.key}
            assert option.of(read) == meant(option)


def test_a_variable_overrides_the_file(subtests: pytest.Subtests, tmp_path: Path) -> None:
    for option in OPTIONS:
        with subtests.test(option=option.key):
            contrary = "" if option.default is None else f"{option.key} = {toml(plain(option.default))}"
            path = written(tmp_path, contrary)
            read = config("serve", "--config.file", path, **{option.variable: OTHERS[option.key][0]})
            assert option.of(read) == meant(option)


def test_a_flag_overrides_the_variable(subtests: pytest.Subtests) -> None:
    assert config("serve", "--no-web.systemd-socket", CUDA_MPS_EXPORTER_WEB_SYSTEMD_SOCKET="on") == config("serve")
    assert config("serve", "--web.systemd-socket", CUDA_MPS_EXPORTER_WEB_SYSTEMD_SOCKET="off").systemd_socket
    for option in OPTIONS:
        if option.key != "web.systemd_socket":
            with subtests.test(option=option.key):
                flag = f"{option.flag}={OTHERS[option.key][0]}"
                assert option.of(config("serve", flag, **{option.variable: valid_default(option)})) == meant(option)


def test_an_empty_variable_sets_nothing(subtests: pytest.Subtests) -> None:
    for option in OPTIONS:
        with subtests.test(option=option.key):
            assert config("serve", **{option.variable: ""}) == config("serve")


def test_no_two_options_share_a_name() -> None:
    for names in zip(*((o.flag, o.variable, o.key, o.attribute) for o in OPTIONS), strict=True):
        assert max(Counter(names).values()) == 1


def test_a_list_is_a_flag_given_again() -> None:
    read = config("serve", "--web.listen-address", ":1", "--web.listen-address", "[::1]:2")
    assert read.listen == (("", 1), ("::1", 2))


def test_a_flag_can_empty_a_list(tmp_path: Path) -> None:
    path = written(tmp_path, '[watchdog]\nallow = ["restart_daemon"]')
    assert config("serve", "--config.file", path).watchdog_allow == {AllowedAction.RESTART_DAEMON}
    assert config("serve", "--config.file", path, "--watchdog.allow=").watchdog_allow == frozenset()


# -- variables ----------------------------------------------------------------------------------------------------


def test_refuses_an_unknown_variable_and_suggests_another() -> None:
    with pytest.raises(ConfigError) as refused:
        config("serve", CUDA_MPS_EXPORTER_LOG_LEVLE="debug")
    assert str(refused.value) == (
        "unknown variable 'CUDA_MPS_EXPORTER_LOG_LEVLE'; did you mean CUDA_MPS_EXPORTER_LOG_LEVEL?"
    )


def test_refuses_an_unusable_value_and_names_the_variable() -> None:
    with pytest.raises(ConfigError, match=r"^CUDA_MPS_EXPORTER_LOG_LEVEL: invalid value 'loud': expected one of"):
        config("serve", CUDA_MPS_EXPORTER_LOG_LEVEL="loud")
    with pytest.raises(ConfigError, match=r"^CUDA_MPS_EXPORTER_WEB_LISTEN_ADDRESS: invalid value 'here': expected"):
        config("serve", CUDA_MPS_EXPORTER_WEB_LISTEN_ADDRESS=":1, here")


@pytest.mark.parametrize(
    "url",
    [
        "grafana:3000",
        "ftp://grafana",
        "javascript:alert(1)",
        "https://",
        "https://grafana/?orgId=1",
        "https://grafana/#a",
        'https://grafana/"onclick=',
        "https://grafana/<b>",
        "https://grafana/ a",
        "https://grafana\n",
        "https://gräfana",
        "https://grafana/" + "x" * 4096,
    ],
)
def test_refuses_what_is_no_start_of_a_url(url: str) -> None:
    with pytest.raises(ConfigError, match=r"^--web.grafana-url: .* expected the http or https URL of a server"):
        config("serve", f"--web.grafana-url={url}")


@pytest.mark.parametrize("url", ["https://bob:se/cret@grafana", "https://secret@grafana/x", "http://a\n:secret@b"])
def test_refuses_a_url_with_a_password_and_does_not_show_it(url: str) -> None:
    with pytest.raises(ConfigError, match="without user, password") as refused:
        config("serve", f"--web.prometheus-url={url}")
    assert "cret" not in str(refused.value)


def test_ignores_foreign_variables_with_the_same_prefix(subtests: pytest.Subtests) -> None:
    """A Service named cuda-mps-exporter must not prevent the exporter's own pods from starting."""
    for variable in FOREIGN:
        with subtests.test(variable=variable):
            assert config("serve", **{f"CUDA_MPS_EXPORTER_{variable}": "tcp://10.0.0.1:10677"}) == config("serve")


def test_ignores_a_variable_of_another_command() -> None:
    assert config("status", CUDA_MPS_EXPORTER_WEB_MAX_REQUESTS="7") == config("status")


def test_uses_the_directory_that_systemd_created(subtests: pytest.Subtests) -> None:
    for kind in ("runtime", "state"):
        with subtests.test(kind=kind):
            made = {f"{kind.upper()}_DIRECTORY": "/made/a:/made/b"}
            assert getattr(config("serve", **made), f"{kind}_directory") == Path("/made/a")
            read = config("serve", f"--path.{kind}-directory=/else", **made)
            assert getattr(read, f"{kind}_directory") == Path("/else")


# -- files and commands -------------------------------------------------------------------------------------------


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
    assert config_with_default(tmp_path / "none.toml", "serve") == config("serve")


def test_a_command_for_recordings_reads_no_file(subtests: pytest.Subtests, tmp_path: Path) -> None:
    """A recording replays identically on every machine."""
    path = Path(written(tmp_path, "[log]\nlevel = 'debug'\n[clients]\nmin_age_seconds = 99"))
    for command in (("replay", "--events", "-"), ("demo",)):
        with subtests.test(command=command):
            assert config_with_default(path, *command) == config(*command)


def test_interactive_commands_log_less_by_default() -> None:
    assert config("serve").log_level == "info"
    assert config("status").log_level == config("replay", "--events", "-").log_level == "warning"
    assert config("status", CUDA_MPS_EXPORTER_LOG_LEVEL="info").log_level == "info"
