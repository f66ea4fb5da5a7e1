"""Output of systemctl and journalctl (systemd 252)."""

import json
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.model.observation import UnitState
from exporter.parse.systemd import (
    JOURNAL_FIELDS,
    SUPPRESSED_MESSAGE_ID,
    JournalEntry,
    UnitProperties,
    parse_environment_file,
    parse_journal_entry,
    parse_unit_properties,
    parse_unit_states,
)
from exporter.parse.units import is_service_name


@pytest.mark.parametrize("name", ["mps.service", "nvidia-cuda-mps@0.service", r"a\x2db.service"])
def test_accepts_the_name_of_a_service(name: str) -> None:
    assert is_service_name(name)


def test_refuses_patterns_and_options(subtests: pytest.Subtests) -> None:
    """Systemctl would show all units for a pattern, and act differently for an option."""
    for name in ["", "*.service", "--all.service", "-H.service", "a b.service", "mps", "a/b.service", "a\n.service"]:
        with subtests.test(name=name):
            assert not is_service_name(name)


TIMES = "start_time=[Sat 2026-11-21 03:05:01 UTC] ; stop_time=[n/a] ; pid=58 ; code=(null) ; status=0/0"


def shown(*commands: str, name: str = "nvidia-mps.service", state: str = "enabled", more: str = "") -> str:
    """Return the output of `systemctl show` for a unit."""
    executed = "".join(
        f"ExecStart={{ path={each.split()[0]} ; argv[]={each} ; ignore_errors=no ; {TIMES} }}\n" for each in commands
    )
    return f"{executed}{more}Id={name}\nUnitFileState={state}\n"


def unit(*commands: str, state: str = "enabled", more: str = "") -> UnitProperties:
    (only,) = parse_unit_properties(shown(*commands, state=state, more=more))
    return only


def test_recognizes_a_command_that_starts_a_daemon(subtests: pytest.Subtests) -> None:
    for command in [
        "/usr/bin/nvidia-cuda-mps-control -f",
        "/usr/bin/nvidia-cuda-mps-control -d",
        "/usr/bin/nvidia-cuda-mps-control -d -M",
        "/usr/bin/nvidia-cuda-mps-control -multiuser-server -f",
        "nvidia-cuda-mps-control -f",
        "/usr/bin/env CUDA_MPS_PIPE_DIRECTORY=/run/mps nvidia-cuda-mps-control -d",
        "/bin/sh -c mkdir -p /run/mps ; exec /usr/bin/nvidia-cuda-mps-control -f",
        '/bin/sh -c "nvidia-cuda-mps-control -d"',
        "/bin/sh -c nvidia-cuda-mps-control -d && echo start_server -uid 0 | nvidia-cuda-mps-control",
    ]:
        with subtests.test(command=command):
            assert unit("/bin/true", command).daemon_command == command


def test_other_commands_start_no_daemon(subtests: pytest.Subtests) -> None:
    for command in [
        "/bin/sh -c echo quit | /usr/bin/nvidia-cuda-mps-control",
        "/bin/sh -c echo quit | nvidia-cuda-mps-control ; rm -f /tmp/x -d",
        "/usr/bin/nvidia-cuda-mps-control -v",
        "/usr/bin/nvidia-cuda-mps-control get_server_list",
        "/usr/bin/nvidia-cuda-mps-control-watcher -d",
        "/opt/cuda-mps-exporter/bin/cuda-mps-exporter serve -f",
        "/usr/bin/nvidia-persistenced -d",
    ]:
        with subtests.test(command=command):
            assert unit(command).daemon_command is None


def test_only_an_enabled_unit_is_enabled(subtests: pytest.Subtests) -> None:
    """A static unit is not expected to run."""
    for state, enabled in [
        ("enabled", True),
        ("enabled-runtime", True),
        *((state, False) for state in ("disabled", "static", "linked", "masked", "indirect", "generated", "")),
    ]:
        with subtests.test(state=state, enabled=enabled):
            assert unit("/bin/true", state=state).enabled is enabled


@pytest.mark.parametrize(
    ("command", "in_file"),
    [
        ('/bin/sh -c exec nvidia-cuda-mps-control -f >>"$$CUDA_MPS_LOG_DIRECTORY/stdout.log"', True),
        ("/bin/sh -c exec nvidia-cuda-mps-control -f >> /var/log/nvidia-mps/stdout.log", True),
        ("/bin/sh -c exec nvidia-cuda-mps-control -f >>/var/log/mps.log", False),
        ("/usr/bin/nvidia-cuda-mps-control -f", False),
    ],
)
def test_recognizes_a_foreground_daemon_with_stdout_in_a_file(command: str, in_file: bool) -> None:
    found = unit(command)
    assert (found.daemon_in_foreground, found.daemon_stdout_in_file) == (True, in_file)


def test_parses_quoted_assignments_of_the_environment() -> None:
    found = unit(more='Environment="CUDA_MPS_PIPE_DIRECTORY=/tmp/a b" "X=q\\"uote" Y=1 Z=\n').environment
    assert found == {"CUDA_MPS_PIPE_DIRECTORY": "/tmp/a b", "X": 'q"uote', "Y": "1", "Z": ""}


def test_returns_environment_files_in_order() -> None:
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
def test_returns_an_assignment_in_the_command(command: str) -> None:
    assert unit(command).assigned("DIR") == "/run/mps"
    assert unit(command).assigned("IR") is None


def test_parses_the_properties_of_several_units() -> None:
    text = f"{shown('/bin/a', name='a.service')}\n{shown(name='b.service', state='')}\n{shown('/c', name='c.service')}"
    assert [(each.name, each.commands) for each in parse_unit_properties(text)] == [
        ("a.service", ("/bin/a",)),
        ("b.service", ()),
        ("c.service", ("/c",)),
    ]


def test_parses_an_environment_file() -> None:
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
def test_any_text_parses_as_unit_properties(text: str) -> None:
    for each in (*parse_unit_properties(text), *parse_unit_properties(f"Id=x\nExecStart={{ path=x ; argv[]={text}")):
        assert each.name
        each.assigned("A")
    assert parse_environment_file(text) is not None


AT = 1000.0


def state_shown(name: str = "mps.service", *, names: str | None = None, **values: str) -> str:
    """Return the output of `systemctl show` for a unit."""
    lines = {"Id": name, "Names": name if names is None else names, **values}
    return "".join(f"{key}={value}\n" for key, value in lines.items())


RUNS = {
    "LoadState": "loaded",
    "ActiveState": "active",
    "SubState": "running",
    "Result": "success",
    "Restart": "on-failure",
    "NRestarts": "2",
    "MainPID": "441",
}


def test_returns_the_state_of_a_running_unit() -> None:
    (state,) = parse_unit_states(state_shown(**RUNS), ["mps.service"], AT)
    assert state == UnitState(
        at=AT,
        unit="mps.service",
        load="loaded",
        active="active",
        sub="running",
        result="success",
        restart="on-failure",
        restarts=2,
    )


def test_returns_states_in_the_order_of_the_requested_units() -> None:
    text = "\n".join(
        [
            state_shown("a.service", ActiveState="failed"),
            state_shown("b.service", ActiveState="active"),
        ]
    )
    states = [
        (state.unit, state.active) for state in parse_unit_states(text, ["b.service", "a.service", "c.service"], AT)
    ]
    assert states == [("b.service", "active"), ("a.service", "failed")]


def test_finds_a_unit_by_each_of_its_names() -> None:
    text = state_shown("nvidia-cuda-mps.service", names="nvidia-cuda-mps.service mps.service", **RUNS)
    (state,) = parse_unit_states(text, ["mps.service"], AT)
    assert (state.unit, state.active) == ("mps.service", "active")


def test_a_missing_property_is_empty_or_0() -> None:
    """NRestarts= came with systemd 235."""
    (state,) = parse_unit_states(state_shown(), ["mps.service"], AT)
    assert state == UnitState(at=AT, unit="mps.service")


def test_an_invalid_number_is_0(subtests: pytest.Subtests) -> None:
    for number in ["", "[not set]", "-1", "9" * 30, "٣"]:
        with subtests.test(number=number):
            (state,) = parse_unit_states(state_shown(NRestarts=number), ["mps.service"], AT)
            assert state.restarts == 0


@given(st.text(), st.lists(st.text(), max_size=3))
def test_any_text_parses_as_unit_states(text: str, units: list[str]) -> None:
    assert {state.unit for state in parse_unit_states(text, units, AT)} <= set(units)


UNIT = "nvidia-mps.service"
DAEMON_LINE = {
    "__CURSOR": "s=95e;i=5;b=dea;m=2b4;t=660;x=dee",
    "__REALTIME_TIMESTAMP": "1795230434136686",
    "_TRANSPORT": "stdout",
    "_SYSTEMD_UNIT": UNIT,
    "_COMM": "nvidia-cuda-mps",
    "_EXE": "/usr/bin/nvidia-cuda-mps-control",
    "_STREAM_ID": "e9c776f9311b4079b96ef352d05637d3",
    "MESSAGE": "[2026-11-20 15:11:58.933 Control  9235] NEW UI",
}
DROPPED = {
    "__CURSOR": "s=95e;i=6",
    "_TRANSPORT": "driver",
    "_SYSTEMD_UNIT": "systemd-journald.service",
    "MESSAGE_ID": SUPPRESSED_MESSAGE_ID,
    "MESSAGE": f"Suppressed 71 messages from {UNIT}",
    "N_DROPPED": "71",
}


def entry(fields: Mapping[str, object], **changed: object) -> JournalEntry:
    found = parse_journal_entry(json.dumps({**fields, **changed}).encode())
    assert found is not None
    return found


def test_recognizes_lines_of_daemon_and_server(subtests: pytest.Subtests) -> None:
    """The last lines of a daemon that has exited have no program."""
    without_program = {name: DAEMON_LINE[name] for name in DAEMON_LINE if name not in ("_EXE", "_COMM")}
    for line in [DAEMON_LINE, {**DAEMON_LINE, "_EXE": "/usr/bin/nvidia-cuda-mps-server"}, without_program]:
        with subtests.test(line=line):
            assert entry(line).message == DAEMON_LINE["MESSAGE"]
            assert entry(line).is_mps_output_of(UNIT)


def test_a_line_of_another_writer_is_not_of_the_daemon(subtests: pytest.Subtests) -> None:
    """Also if it sends the same text directly to journald, in the daemon's own unit, or has the daemon's name."""
    for changed in [
        {"_SYSTEMD_UNIT": "other.service"},
        {"_SYSTEMD_UNIT": None},
        {"_TRANSPORT": "journal"},
        {"_TRANSPORT": "syslog"},
        {"_EXE": "/usr/bin/python3"},
        {"_EXE": None, "_COMM": "python3"},
        {"_EXE": "/home/mallory/train", "_COMM": "nvidia-cuda-mps"},
    ]:
        with subtests.test(changed=changed):
            assert not entry(DAEMON_LINE, **changed).is_mps_output_of(UNIT)


def test_decodes_a_message_that_is_a_list_of_bytes() -> None:
    assert entry(DAEMON_LINE, MESSAGE=[255, 104, 105]).message == "\ufffdhi"


def test_a_message_of_another_type_is_none(subtests: pytest.Subtests) -> None:
    for message in [None, [256], [True], ["a", "b"], {}, 5]:
        with subtests.test(message=message):
            assert entry(DAEMON_LINE, MESSAGE=message).message is None


@pytest.mark.parametrize(
    ("line_break", "unfinished"), [("line-max", True), ("nul", True), ("eof", False), ("pid-change", False)]
)
def test_a_line_that_journald_split_is_unfinished(line_break: str, unfinished: bool) -> None:
    assert entry(DAEMON_LINE, _LINE_BREAK=line_break).unfinished is unfinished


def test_counts_the_dropped_lines_of_a_unit() -> None:
    assert entry(DROPPED).lines_dropped_of(UNIT) == 71
    assert entry(DROPPED).lines_dropped_of("mps.service") == 0


def test_only_journald_can_report_dropped_lines() -> None:
    assert entry(DROPPED, _TRANSPORT="journal", _SYSTEMD_UNIT=UNIT).lines_dropped_of(UNIT) == 0
    assert entry(DAEMON_LINE, MESSAGE=DROPPED["MESSAGE"], N_DROPPED="71").lines_dropped_of(UNIT) == 0


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just("9" * 5000),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
lines = st.one_of(
    st.binary(),
    values.map(lambda value: json.dumps(value).encode()),
    st.dictionaries(st.sampled_from([*JOURNAL_FIELDS, "__CURSOR"]), values).map(
        lambda value: json.dumps(value).encode()
    ),
    st.sampled_from([b"[" * 100_000, b'{"a":' * 100_000, b"9" * 5000, b'{"__CURSOR":"c","N_DROPPED":"\xd9\xa3"}']),
)


@given(lines)
@settings(max_examples=200)
def test_any_line_parses_as_a_journal_entry_or_none(line: bytes) -> None:
    found = parse_journal_entry(line)
    assert found is None or (
        found.dropped >= 0 and found.lines_dropped_of(UNIT) >= 0 and found.is_mps_output_of(UNIT) in (True, False)
    )
