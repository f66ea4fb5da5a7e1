"""`status` of one daemon alone."""

from dataclasses import replace

from exporter.model.node import Node
from exporter.report import status_text
from tests.builders import DAEMON, at_work, blocked_recovery, daemon_dead, reduced, three_clients


def two_daemons() -> Node:
    return reduced(*at_work(700, server=514, daemon="/run/other"), start=three_clients()).node


def test_shows_one_daemon() -> None:
    present = replace(two_daemons(), incidents=blocked_recovery().incidents)
    alone = status_text.status_answer(present, as_json=True, daemon="/run/other")
    assert [each["name"] for each in alone["node"]["daemons"]] == ["/run/other"]
    assert (alone["node"]["incidents"], [gpu["bypassing"] for gpu in alone["node"]["gpus"]]) == ([], [[], []])
    answer = status_text.status_answer(present, as_json=True, daemon=DAEMON)
    assert len(answer["node"]["incidents"]) == len(present.incidents) > 0


def test_exit_code_is_that_of_one_daemon() -> None:
    present = reduced(
        start=replace(daemon_dead(), daemons={**two_daemons().daemons, DAEMON: daemon_dead().daemons[DAEMON]})
    ).node
    assert status_text.status_answer(present)["exit_code"] == 1
    assert status_text.status_answer(present, daemon="/run/other")["exit_code"] == 0


def test_lists_the_daemons_if_the_name_is_unknown() -> None:
    assert status_text.status_answer(two_daemons(), daemon="\x1b[2J") == {
        "problem": f"no daemon \N{REPLACEMENT CHARACTER}[2J is here; there are: {DAEMON}, /run/other"
    }
