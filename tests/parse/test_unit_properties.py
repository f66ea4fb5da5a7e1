"""What systemctl shows of units (systemd 252), and which of them start a control daemon."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.parse.systemd import UnitProperties, parse_environment_file, parse_unit_properties

TIMES = "start_time=[Sat 2026-11-21 03:05:01 UTC] ; stop_time=[n/a] ; pid=58 ; code=(null) ; status=0/0"


def shown(*commands: str, name: str = "nvidia-mps.service", state: str = "enabled", more: str = "") -> str:
    """A unit as `systemctl show` tells of it."""
    executed = "".join(
        f"ExecStart={{ path={each.split()[0]} ; argv[]={each} ; ignore_errors=no ; {TIMES} }}\n" for each in commands
    )
    return f"{executed}{more}Id={name}\nUnitFileState={state}\n"


def unit(*commands: str, state: str = "enabled", more: str = "") -> UnitProperties:
    (only,) = parse_unit_properties(shown(*commands, state=state, more=more))
    return only


@pytest.mark.parametrize(
    "command",
    [
        "/usr/bin/nvidia-cuda-mps-control -f",
        "/usr/bin/nvidia-cuda-mps-control -d",
        "/usr/bin/nvidia-cuda-mps-control -d -M",
        "/usr/bin/nvidia-cuda-mps-control -multiuser-server -f",
        "nvidia-cuda-mps-control -f",
        "/usr/bin/env CUDA_MPS_PIPE_DIRECTORY=/run/mps nvidia-cuda-mps-control -d",
        "/bin/sh -c mkdir -p /run/mps ; exec /usr/bin/nvidia-cuda-mps-control -f",
        '/bin/sh -c "nvidia-cuda-mps-control -d"',
        "/bin/sh -c nvidia-cuda-mps-control -d && echo start_server -uid 0 | nvidia-cuda-mps-control",
    ],
)
def test_a_unit_starts_a_daemon(command: str) -> None:
    assert unit("/bin/true", command).daemon_command == command


@pytest.mark.parametrize(
    "command",
    [
        "/bin/sh -c echo quit | /usr/bin/nvidia-cuda-mps-control",
        "/bin/sh -c echo quit | nvidia-cuda-mps-control ; rm -f /tmp/x -d",
        "/usr/bin/nvidia-cuda-mps-control -v",
        "/usr/bin/nvidia-cuda-mps-control get_server_list",
        "/usr/bin/nvidia-cuda-mps-control-watcher -d",
        "/opt/cuda-mps-exporter/bin/cuda-mps-exporter serve -f",
        "/usr/bin/nvidia-persistenced -d",
    ],
)
def test_a_unit_starts_none(command: str) -> None:
    assert unit(command).daemon_command is None


@pytest.mark.parametrize(
    ("state", "enabled"),
    [
        ("enabled", True),
        ("enabled-runtime", True),
        *((state, False) for state in ("disabled", "static", "linked", "masked", "indirect", "generated", "")),
    ],
)
def test_a_unit_that_nobody_enabled_is_not_expected(state: str, enabled: bool) -> None:
    """A static one is there for whoever wants it, and its absence is their business."""
    assert unit("/bin/true", state=state).enabled is enabled


@pytest.mark.parametrize(
    ("command", "kept"),
    [
        ('/bin/sh -c exec nvidia-cuda-mps-control -f >>"$$CUDA_MPS_LOG_DIRECTORY/stdout.log"', True),
        ("/bin/sh -c exec nvidia-cuda-mps-control -f >> /var/log/nvidia-mps/stdout.log", True),
        ("/bin/sh -c exec nvidia-cuda-mps-control -f >>/var/log/mps.log", False),
        ("/usr/bin/nvidia-cuda-mps-control -f", False),
    ],
)
def test_a_foreground_daemon_keeps_its_stdout_in_a_file_or_not(command: str, kept: bool) -> None:
    found = unit(command)
    assert (found.daemon_in_foreground, found.daemon_stdout_in_file) == (True, kept)


def test_the_environment_is_quoted_by_whole_assignments() -> None:
    found = unit(more='Environment="CUDA_MPS_PIPE_DIRECTORY=/tmp/a b" "X=q\\"uote" Y=1 Z=\n').environment
    assert found == {"CUDA_MPS_PIPE_DIRECTORY": "/tmp/a b", "X": 'q"uote', "Y": "1", "Z": ""}


def test_files_are_told_in_their_order() -> None:
    more = "EnvironmentFiles=/etc/default/a (ignore_errors=yes)\nEnvironmentFiles=/etc/b (c) (ignore_errors=no)\n"
    assert unit(more=more).environment_files == ("/etc/default/a", "/etc/b (c)")


@pytest.mark.parametrize(
    "command",
    [
        "/usr/bin/env A=1 DIR=/run/mps nvidia-cuda-mps-control -d",
        "/bin/sh -c export DIR=/run/mps; exec nvidia-cuda-mps-control -f",
        '/bin/sh -c DIR="/run/mps" nvidia-cuda-mps-control -f',
        "/bin/sh -c DIR=/else; DIR='/run/mps' nvidia-cuda-mps-control -f",
    ],
)
def test_what_the_command_itself_assigns_is_known(command: str) -> None:
    assert unit(command).assigned("DIR") == "/run/mps"
    assert unit(command).assigned("IR") is None


def test_several_units_are_told_apart() -> None:
    text = f"{shown('/bin/a', name='a.service')}\n{shown(name='b.service', state='')}\n{shown('/c', name='c.service')}"
    assert [(each.name, each.commands) for each in parse_unit_properties(text)] == [
        ("a.service", ("/bin/a",)),
        ("b.service", ()),
        ("c.service", ("/c",)),
    ]


def test_a_file_of_variables() -> None:
    text = (
        '# a comment\n; another\n\nA=1\n  B = no\nC=\'x y\' \nD="a\\"b"\nE=two words \nF=\nA=2\nG=un\'closed\nH="open\n'
        "I=one\\\nline\nexport J=1\n"
    )
    assert parse_environment_file(text) == {
        "A": "2",
        "C": "x y",
        "D": 'a"b',
        "E": "two words",
        "F": "",
        "G": "un'closed",
        "H": '"open',
        "I": "oneline",
    }


PIECES = (
    *("Id=", "ExecStart={ path=", " ; argv[]=", " ; ignore_errors=no ; ", "}", "Environment=", "EnvironmentFiles="),
    *("nvidia-cuda-mps-control", " -d", " -f", "\n", "\n\n", '"', "'", "\\", "$", "=", ";", " ", "\0", "\ud800"),
)
texts = st.text(st.characters(exclude_categories=())) | st.lists(st.sampled_from(PIECES)).map("".join)


@given(texts)
@settings(max_examples=200)
def test_any_text_is_some_units_or_none(text: str) -> None:
    for each in (*parse_unit_properties(text), *parse_unit_properties(f"Id=x\nExecStart={{ path=x ; argv[]={text}")):
        assert each.name
        each.assigned("A")
    assert parse_environment_file(text) is not None
