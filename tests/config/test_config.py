"""The configuration from flags and environment, and refused values."""

import pytest

from exporter.cli import main
from exporter.config.checks import LONGEST_SOCKET_PATH
from exporter.errors import ConfigError
from tests.config.reading import config


def test_a_recording_shows_all_clients() -> None:
    assert config("serve").client_min_age == 15.0
    assert config("replay", "--events", "-").client_min_age == 0.0


def test_a_duration_is_a_number_and_a_unit(subtests: pytest.Subtests) -> None:
    durations = {"0": 0, "15": 15, "15s": 15, "500ms": 0.5, "2m": 120, "1.5h": 5400, "0.25": 0.25}
    for text, seconds in durations.items():
        with subtests.test(text=text):
            assert config("serve", f"--client-min-age={text}").client_min_age == seconds


def test_refuses_another_duration_and_names_the_flag(subtests: pytest.Subtests) -> None:
    signs = ("-1s", "+1s", "1 s", "1e3", "1_000", ".5s", "5.s", "1s\n")
    for text in ("", "s", "fast", "1d", "nan", "inf", "9" * 5000, "999999999h", *signs):
        with subtests.test(text=text), pytest.raises(ConfigError, match=r"^--client-min-age: .*: expected a duration"):
            config("serve", f"--client-min-age={text}")


LONG = "/" + "x" * (LONGEST_SOCKET_PATH - len("//control_privileged"))
"""The longest pipe directory with room for the sockets."""

WRONG = (
    (("serve", "--web.listen-address", "nowhere"), "--web.listen-address"),
    (("replay", "--metrics", "--client-min-age=-1", "-"), "--client-min-age"),
    (("demo", "--web.listen-address", ":99999"), "--web.listen-address"),
    (("serve", "--pipe-directory", "relative/pipe"), "--pipe-directory"),
    (("status", "--pipe-directory", "nul\0byte"), "--pipe-directory"),
    (("serve", "--log-directory", "relative/log"), "--log-directory"),
    (("serve", "--pipe-directory", LONG + "x"), "--pipe-directory"),
    (("status", "--pipe-directory", "/" + "ü" * 50), "--pipe-directory"),
    (("record", "--for", "a while", "-"), "--for"),
)


def test_names_an_unusable_value_and_exits_with_2(
    subtests: pytest.Subtests, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, flag in WRONG:
        with subtests.test(arguments=arguments):
            assert main(arguments) == 2
            output = capsys.readouterr()
            assert output.err.startswith(f"cuda-mps-exporter: {flag}: ")
            assert output.err.count("\n") == 1
            assert output.out == ""


def test_accepts_the_longest_directory_for_a_socket() -> None:
    """With 107 bytes, a control daemon can still start there."""
    (daemon,) = config("serve", "--pipe-directory", LONG).daemons
    assert len(str(daemon.pipe_directory / "control_privileged")) == LONGEST_SOCKET_PATH == 107


def test_unknown_arguments_exit_with_2(subtests: pytest.Subtests, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        (),
        ("sing",),
        ("serve", "--wob"),
        ("serve", "--client-min", "1s"),
        ("replay", "x"),
        ("replay", "--events", "--metrics", "x"),
        ("demo", "--seed", "one"),
        ("serve", "--log.level", "loud"),
    ):
        with subtests.test(arguments=arguments):
            with pytest.raises(SystemExit) as ended:
                main(list(arguments))
            assert ended.value.code == 2
            assert "usage: cuda-mps-exporter" in capsys.readouterr().err
