"""The report as text and as JSON."""

import json
import shlex
import tomllib

from exporter.doctor import CHECKS, examine, report_lines, report_object
from exporter.doctor.daemons import directory_closed, directory_writable
from exporter.doctor.facts import Area, Facts, NotExamined, Programs, config_line, process_label, quoted, shown
from exporter.model.node import Node
from exporter.model.settings import PIPE_DIRECTORY
from exporter.model.values import replace
from exporter.report.text import text_of
from tests.doctor.healthy import BYPASSING, DAEMON, directory, exporter_process, healthy, process, with_bypassing
from tests.status import status_json

HOSTILE = "\x1b]0;owned\x07\n$(reboot) `id` '; rm -rf / #\u202e" + "x" * 5000


def report_text(facts: Facts, *, verbose: bool = False) -> str:
    return text_of(report_lines(examine(facts), facts, verbose=verbose))


def test_reports_what_was_examined() -> None:
    examined, *others = report_text(healthy()).splitlines()
    assert examined.startswith(
        "Examined: 1 GPU, 1 running daemon, 1 CUDA process, 1 log, 1 systemd unit, the rights of "
    )
    assert others == [
        f"{len(CHECKS)} checks found nothing wrong.",
        "0 critical, 0 warning, 0 unknown, 0 info.",
    ]


def test_a_finding_shows_problem_place_fix_and_commands() -> None:
    facts = healthy(directories={DAEMON: directory(closed="/run")})
    assert report_text(facts).splitlines()[:5] == [
        "CRITICAL: Other users' servers cannot open a daemon's sockets, and exit. Only the owner can enter /run",
        "  Their clients get error 805.",
        "  - /run/nvidia-mps",
        f"  What to do: {directory_closed.definition.remedy}",
        "     chmod o+x /run",
    ]


def test_verbose_lists_passed_and_unknown_checks() -> None:
    facts = healthy(not_examined=(NotExamined(area=Area.LOGS, reason="hidden", reported=True),))
    text = report_text(facts, verbose=True)
    found_nothing, _, unknown = text.partition("Unknown: ")
    assert found_nothing.startswith("Found nothing: ")
    assert " daemon_outdated," in found_nothing
    assert "log_not_followed," in unknown
    assert "Not examined, or not in full: logs. 4 checks are incomplete." in text.splitlines()


def test_text_shows_the_first_facts_and_json_all() -> None:
    facts = with_bypassing(
        healthy(), *(process(pid, environment={}, pipe=None) for pid in range(BYPASSING, BYPASSING + 20))
    )
    report = examine(facts)
    text = report_text(facts)
    assert f"PID {BYPASSING + 7} " in text
    assert f"PID {BYPASSING + 8} " not in text
    assert "and 12 more" in text
    assert len(report_object(report, facts)["findings"][0]["facts"]) == 20


def test_lists_the_commands_of_all_daemons_in_one_finding() -> None:
    facts = healthy()
    (daemon,) = facts.daemons
    directories = {name: directory(path=f"/run/{name}", pid_file_mode=0o666) for name in "ab"}
    running = tuple(replace(daemon, name=name) for name in "ab")
    report = examine(replace(facts, daemons=running, directories=directories))
    (found,) = (each for each in report.findings if each.problem.code == directory_writable.code)
    files = tuple(f"/run/{name}/nvidia-cuda-mps-control.pid" for name in "ab")
    assert found.facts == files
    assert found.commands == tuple(f"chmod go-w {file}" for file in files)


def test_escapes_hostile_texts() -> None:
    hostile = process(
        BYPASSING, command=HOSTILE, user=HOSTILE, unit=HOSTILE, environment={PIPE_DIRECTORY: HOSTILE}, pipe=None
    )
    facts = with_bypassing(healthy(), hostile)
    text = report_text(facts)
    assert all(line.isprintable() for line in text.split("\n"))
    assert len(text) < 10_000
    for finding in examine(facts).findings:
        assert all(len(fact) < 200 for fact in finding.facts)


def test_a_path_in_a_command_is_one_word() -> None:
    facts = healthy(directories={DAEMON: directory(closed=HOSTILE)})
    (finding,) = examine(facts).findings
    (command,) = finding.commands
    assert shlex.split(command)[:2] == ["chmod", "o+x"]
    assert len(shlex.split(command)) == 3
    assert quoted("/run/nvidia-mps") == "/run/nvidia-mps"


def test_labels_a_process_by_what_is_known() -> None:
    assert process_label(process(5)) == "PID 5 (train.py of alice)"
    assert process_label(process(5, user=None)) == "PID 5 (train.py of UID 1001)"
    assert process_label(process(5, user=None, uid=None, command=None)) == "PID 5"
    assert len(shown(HOSTILE)) == 512


def test_json_has_all_parts_of_the_report() -> None:
    facts = healthy(
        programs=Programs(),
        exporter=exporter_process(kernel_log=HOSTILE),
        not_examined=(NotExamined(area=Area.PROGRAMS, reason=HOSTILE, reported=True),),
    )
    found = report_object(examine(facts), facts)
    assert json.loads(json.dumps(found)) == found
    assert set(found) == {"version", "exit_code", "counts", "findings", "ok", "unknown", "not_examined"}
    assert found["counts"] == {"critical": 1, "warning": 0, "unknown": 0, "info": 1}
    assert [finding["code"] for finding in found["findings"]] == ["mps_program_unusable", "kernel_log_closed"]
    (of_status,) = status_json(Node())["findings"]
    assert all(set(finding) == {*of_status} for finding in found["findings"])
    assert "reported_by_status" in found["unknown"]
    assert found["not_examined"][0]["reason"].isprintable()


def test_a_configuration_line_is_valid_toml() -> None:
    assert tomllib.loads(config_line("log_directory", HOSTILE)) == {"log_directory": shown(HOSTILE)}
    assert config_line("pipe_directory", "/run/mps") == 'pipe_directory = "/run/mps"'
