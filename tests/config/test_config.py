"""The configuration from flags and environment, and refused values."""

from pathlib import Path

import pytest

from exporter.cli import main
from exporter.config.options import LONGEST_SOCKET_PATH
from exporter.config.settings import DEFAULT_PORT
from exporter.config.values import ADDRESS, DURATION
from exporter.errors import ConfigError
from tests.config.reading import config


class TestDefaults:
    """Without options, the directories and the port have their defaults."""

    def test_names_no_daemon(self) -> None:
        """The exporter discovers the daemons."""
        assert config("serve").daemons == ()

    def test_address_and_age(self) -> None:
        """A recording shows all clients, whatever their age."""
        assert config("serve").listen == (("", DEFAULT_PORT),) == (("", 10677),)
        assert config("serve").client_min_age == 15.0
        assert config("replay", "--events", "-").client_min_age == 0.0

    def test_flags_name_a_daemon(self) -> None:
        """Its absence is an outage."""
        (daemon,) = config("serve", "--pipe-directory", "/run/mps", "--log-directory", "/log").daemons
        assert (daemon.name, daemon.log_directory) == ("/run/mps", Path("/log"))

    def test_variables_of_mps_name_a_daemon(self) -> None:
        """As for all tools of MPS."""
        (daemon,) = config("serve", CUDA_MPS_PIPE_DIRECTORY="/run/e", CUDA_MPS_LOG_DIRECTORY="/log/e").daemons
        assert (daemon.name, daemon.log_directory) == ("/run/e", Path("/log/e"))

    def test_a_log_directory_flag_names_the_default_daemon(self) -> None:
        """The variable alone declares no daemon."""
        (daemon,) = config("serve", "--log-directory=/log").daemons
        assert (daemon.name, daemon.log_directory) == ("/tmp/nvidia-mps", Path("/log"))
        assert config("serve", CUDA_MPS_LOG_DIRECTORY="/log").daemons == ()

    def test_a_flag_overrides_the_environment(self) -> None:
        """The flag wins."""
        (daemon,) = config("serve", "--pipe-directory", "/run/f", CUDA_MPS_PIPE_DIRECTORY="/run/e").daemons
        assert daemon.name == "/run/f"


def test_a_duration_is_a_number_and_a_unit(subtests: pytest.Subtests) -> None:
    for text, seconds in [
        ("0", 0.0),
        ("15", 15.0),
        ("15s", 15.0),
        ("500ms", 0.5),
        ("2m", 120.0),
        ("1.5h", 5400.0),
        ("0.25", 0.25),
    ]:
        with subtests.test(text=text, seconds=seconds):
            assert DURATION.of_text("--flag", text) == seconds


def test_refuses_another_duration_and_names_the_flag(subtests: pytest.Subtests) -> None:
    for text in [
        "",
        "s",
        "fast",
        "-1s",
        "+1s",
        "1d",
        "1 s",
        "1e3",
        "1_000",
        "nan",
        "inf",
        ".5s",
        "5.s",
        "9" * 5000,
        "1s\n",
    ]:
        with (
            subtests.test(text=text),
            pytest.raises(ConfigError, match=r"^--flag: invalid value .*: expected a duration"),
        ):
            DURATION.of_text("--flag", text)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (":10677", ("", 10677)),
        ("127.0.0.1:80", ("127.0.0.1", 80)),
        ("node7:0", ("node7", 0)),
        ("[::1]:65535", ("::1", 65535)),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, address: tuple[str, int]) -> None:
    assert ADDRESS.of_text("--web.listen-address", text) == address


def test_refuses_another_address_and_names_the_flag(subtests: pytest.Subtests) -> None:
    for text in ["", "10677", "host", "host:", "host:http", ":65536", ":-1", "::1:80", ":٣", ":²", ":" + "9" * 5000]:
        with subtests.test(text=text), pytest.raises(ConfigError, match=r"^--web.listen-address: "):
            ADDRESS.of_text("--web.listen-address", text)


LONG = "/" + "x" * (LONGEST_SOCKET_PATH - len("//control_privileged"))
"""The longest pipe directory with room for the sockets."""

WRONG = (
    (("serve", "--web.listen-address", "nowhere"), "--web.listen-address"),
    (("serve", "--web.listen-address", "::1:80"), "--web.listen-address"),
    (("serve", "--client-min-age", "young"), "--client-min-age"),
    (("replay", "--metrics", "--client-min-age=-1", "-"), "--client-min-age"),
    (("demo", "--web.listen-address", ":99999"), "--web.listen-address"),
    (("serve", "--pipe-directory", "relative/pipe"), "--pipe-directory"),
    (("status", "--pipe-directory", "nul\0byte"), "--pipe-directory"),
    (("serve", "--log-directory", "relative/log"), "--log-directory"),
    (("serve", "--pipe-directory", LONG + "x"), "--pipe-directory"),
    (("status", "--pipe-directory", "/" + "ü" * 50), "--pipe-directory"),
    (("record", "--for", "a while", "-"), "--for"),
)


@pytest.mark.parametrize(("arguments", "flag"), WRONG, ids=[" ".join(arguments)[:50] for arguments, _ in WRONG])
def test_names_an_unusable_value_and_exits_with_2(
    arguments: tuple[str, ...], flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    output = capsys.readouterr()
    assert output.err.startswith(f"cuda-mps-exporter: {flag}: ")
    assert output.err.count("\n") == 1
    assert output.out == ""


def test_refuses_a_relative_directory_in_the_environment() -> None:
    with pytest.raises(ConfigError, match="relative"):
        config("serve", CUDA_MPS_PIPE_DIRECTORY="relative")


def test_accepts_the_longest_directory_for_a_socket() -> None:
    """With 107 bytes, a control daemon can still start there."""
    (daemon,) = config("serve", "--pipe-directory", LONG).daemons
    assert len(str(daemon.pipe_directory / "control_privileged")) == LONGEST_SOCKET_PATH == 107


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("sing",),
        ("serve", "--wob"),
        ("serve", "--client-min", "1s"),
        ("replay", "x"),
        ("replay", "--events", "--metrics", "x"),
        ("demo", "--seed", "one"),
        ("serve", "--log.level", "loud"),
    ],
    ids=lambda arguments: " ".join(arguments) or "nothing",
)
def test_unknown_arguments_exit_with_2(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert ended.value.code == 2
    assert "usage: cuda-mps-exporter" in capsys.readouterr().err
