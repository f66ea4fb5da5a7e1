"""The report as text and as JSON."""

import json
import shlex
import tomllib

from exporter.doctor.checks import CHECKS, examine
from exporter.doctor.facts import Area, NotExamined, Programs
from exporter.doctor.finding import WIDTH, config_line, process_label, quoted, report_object, report_text, shown
from exporter.model.settings import PIPE_DIRECTORY
from tests.doctor.healthy import BYPASSING, DAEMON, directory, exporter_process, healthy, process, with_bypassing

HOSTILE = "\x1b]0;owned\x07\n$(reboot) `id` '; rm -rf / #\u202e" + "x" * 5000


def test_reports_what_was_examined() -> None:
    facts = healthy()
    assert report_text(examine(facts), facts).splitlines() == [
        "Examined: 1 GPU, 1 running daemon, 1 CUDA process, 1 log, 1 systemd unit, the",
        "rights of the service (PID 900).",
        f"{len(CHECKS)} checks found nothing wrong.",
        "0 errors, 0 warnings, 0 pieces of advice.",
    ]


def test_a_finding_shows_problem_place_fix_and_commands() -> None:
    facts = healthy(directories={DAEMON: directory(closed="/run")})
    assert report_text(examine(facts), facts).splitlines()[:7] == [
        "ERROR  directory-closed",
        "  Other users' servers cannot open a daemon's sockets, and exit. Their clients",
        "  get error 805. Only the owner can enter /run.",
        "  where  /run/nvidia-mps",
        "  fix    Let other users enter the directory, but not write to it. For a unit,",
        "         set RuntimeDirectoryMode=0755.",
        "           chmod o+x /run",
    ]


def test_verbose_lists_passed_and_unknown_checks() -> None:
    facts = healthy(not_examined=(NotExamined(area=Area.LOGS, reason="hidden", reported=True),))
    text = report_text(examine(facts), facts, verbose=True)
    found_nothing, _, unknown = text.partition("Unknown: ")
    assert found_nothing.startswith("Found nothing: ")
    assert " daemon-outdated," in found_nothing
    assert "log-not-followed,\n" in unknown
    assert "Not examined, or not in full: logs. 4 checks are incomplete." in text.splitlines()


def test_text_shows_five_places_and_json_all() -> None:
    facts = with_bypassing(
        healthy(), *(process(pid, variables={}, pipe=None) for pid in range(BYPASSING, BYPASSING + 20))
    )
    report = examine(facts)
    text = report_text(report, facts)
    assert "PID 704 " in text
    assert "PID 705 " not in text
    assert "and 15 more" in text
    assert len(report_object(report, facts)["findings"][0]["where"]) == 20


def test_escapes_hostile_texts() -> None:
    hostile = process(
        BYPASSING, command=HOSTILE, user=HOSTILE, unit=HOSTILE, variables={PIPE_DIRECTORY: HOSTILE}, pipe=None
    )
    facts = with_bypassing(healthy(), hostile)
    text = report_text(examine(facts), facts)
    assert all(line.isprintable() for line in text.split("\n"))
    assert len(text) < 10_000
    for finding in examine(facts).findings:
        assert all(len(place) < 200 for place in finding.where)


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
    assert found["counts"] == {"error": 1, "warning": 0, "advice": 1}
    assert [finding["id"] for finding in found["findings"]] == ["mps-program-unusable", "kernel-log-closed"]
    assert all(
        set(finding) == {"severity", "id", "code", "what", "where", "fix", "commands", "doc"}
        for finding in found["findings"]
    )
    assert "reported-by-status" in found["unknown"]
    assert found["not_examined"][0]["reason"].isprintable()


def test_wraps_text_to_the_width_of_a_terminal() -> None:
    facts = healthy(exporter=exporter_process(capabilities=0, kernel_log="no"), programs=Programs())
    lines = report_text(examine(facts), facts, verbose=True).splitlines()
    assert all(len(line) <= WIDTH for line in lines if not line.startswith(" " * 11))


def test_a_configuration_line_is_valid_toml() -> None:
    assert tomllib.loads(config_line("log_directory", HOSTILE)) == {"log_directory": shown(HOSTILE)}
    assert config_line("pipe_directory", "/run/mps") == 'pipe_directory = "/run/mps"'
