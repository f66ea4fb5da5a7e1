"""A report for a person, and for a program."""

import json
import shlex
import tomllib

from exporter.doctor.facts import Area, NotExamined, Programs
from exporter.doctor.finding import WIDTH, report_object, report_text
from exporter.doctor.formatting import config_line, process_label, quoted, shown
from exporter.doctor.registry import CHECKS, examine
from exporter.model.settings import PIPE_DIRECTORY
from tests.doctor.healthy import BYPASSING, DAEMON, directory, exporter_process, healthy, process, with_bypassing

NASTY = "\x1b]0;owned\x07\n$(reboot) `id` '; rm -rf / #\u202e" + "x" * 5000


def test_where_all_is_well_it_says_what_it_looked_at() -> None:
    facts = healthy()
    assert report_text(examine(facts), facts).splitlines() == [
        "Examined: 1 GPU, 1 running daemon, 1 CUDA process, 1 log, 1 systemd unit, the",
        "rights of the service (PID 900).",
        f"{len(CHECKS)} checks found nothing wrong.",
        "0 errors, 0 warnings, 0 pieces of advice.",
    ]


def test_a_finding_says_what_it_is_where_how_to_mend_it_and_what_to_read() -> None:
    facts = healthy(directories={DAEMON: directory(closed="/run")})
    assert report_text(examine(facts), facts).splitlines()[:7] == [
        "ERROR  directory-closed",
        "  Other users cannot reach a daemon's sockets. Their processes silently bypass",
        "  MPS. Only the owner can enter /run.",
        "  where  /run/nvidia-mps",
        "  fix    Let other users enter the directory, but not write to it. For a unit,",
        "         set RuntimeDirectoryMode=0755.",
        "           chmod o+x /run",
    ]


def test_verbosely_it_tells_of_each_check() -> None:
    facts = healthy(not_examined=(NotExamined(area=Area.LOGS, reason="hidden", reported=True),))
    text = report_text(examine(facts), facts, verbose=True)
    found_nothing, _, unknown = text.partition("Unknown: ")
    assert found_nothing.startswith("Found nothing: ")
    assert " daemon-hung," in found_nothing
    assert "log-unreadable, " in unknown
    assert "Not examined, or not in full: logs. 3 checks are incomplete." in text.splitlines()


def test_of_many_places_a_few_are_shown_and_all_are_in_the_object() -> None:
    facts = with_bypassing(
        healthy(), *(process(pid, variables={}, pipe=None) for pid in range(BYPASSING, BYPASSING + 20))
    )
    report = examine(facts)
    text = report_text(report, facts)
    assert "PID 704 " in text
    assert "PID 705 " not in text
    assert "and 15 more" in text
    assert len(report_object(report, facts)["findings"][0]["where"]) == 20


def test_what_others_chose_is_shown_harmlessly() -> None:
    nasty = process(BYPASSING, command=NASTY, user=NASTY, unit=NASTY, variables={PIPE_DIRECTORY: NASTY}, pipe=None)
    facts = with_bypassing(healthy(), nasty)
    text = report_text(examine(facts), facts)
    assert all(line.isprintable() for line in text.split("\n"))
    assert len(text) < 10_000
    for finding in examine(facts).findings:
        assert all(len(place) < 200 for place in finding.where)


def test_a_path_in_a_command_is_one_word() -> None:
    facts = healthy(directories={DAEMON: directory(closed=NASTY)})
    (finding,) = examine(facts).findings
    (command,) = finding.commands
    assert shlex.split(command)[:2] == ["chmod", "o+x"]
    assert len(shlex.split(command)) == 3
    assert quoted("/run/nvidia-mps") == "/run/nvidia-mps"


def test_a_process_is_called_by_what_is_known_of_it() -> None:
    assert process_label(process(5)) == "PID 5 (train.py of alice)"
    assert process_label(process(5, user=None)) == "PID 5 (train.py of UID 1001)"
    assert process_label(process(5, user=None, uid=None, command=None)) == "PID 5"
    assert len(shown(NASTY)) == 512


def test_the_object_has_all_of_it() -> None:
    facts = healthy(
        programs=Programs(),
        exporter=exporter_process(kernel_log=NASTY),
        not_examined=(NotExamined(area=Area.PROGRAMS, reason=NASTY, reported=True),),
    )
    told = report_object(examine(facts), facts)
    assert json.loads(json.dumps(told)) == told
    assert set(told) == {"version", "exit_code", "counts", "findings", "ok", "unknown", "not_examined"}
    assert told["counts"] == {"error": 1, "warning": 0, "advice": 1}
    assert [finding["id"] for finding in told["findings"]] == ["control-program-missing", "kernel-log-closed"]
    assert all(
        set(finding) == {"severity", "id", "code", "what", "where", "fix", "commands", "doc"}
        for finding in told["findings"]
    )
    assert "daemon-hung" in told["unknown"]
    assert told["not_examined"][0]["reason"].isprintable()


def test_no_line_of_prose_is_wider_than_a_terminal() -> None:
    facts = healthy(exporter=exporter_process(capabilities=0, kernel_log="no"), programs=Programs())
    lines = report_text(examine(facts), facts, verbose=True).splitlines()
    assert all(len(line) <= WIDTH for line in lines if not line.startswith(" " * 11))


def test_a_key_of_the_configuration_can_be_read_as_such() -> None:
    assert tomllib.loads(config_line("log_directory", NASTY)) == {"log_directory": shown(NASTY)}
    assert config_line("pipe_directory", "/run/mps") == 'pipe_directory = "/run/mps"'
