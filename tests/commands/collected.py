"""Collects the commands that the program, its alerts and its documentation show, each with its place."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import yaml

from exporter.cli import COMMANDS
from exporter.model.reason import Reason, ReasonCode
from exporter.model.values import build
from exporter.page.page import Page
from exporter.report import remedy
from exporter.report.node_status import document_of
from exporter.report.problems import PROBLEMS, Situation
from exporter.report.reasons import ADVICE, reason_text
from exporter.report.status_text import status_lines
from exporter.report.text import Style
from tests.builders import circuit_open, quarantined
from tests.commands.cases import CASES
from tests.doctor.test_checks import MISTAKES, found
from tests.page.inputs import status_input
from tests.status import commands_of, incident_json, status_json

ROOT = Path(__file__).parents[2]
RUNBOOKS = sorted((ROOT / "alerts" / "runbooks").glob("*.md"))
DOCS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "CHANGELOG.md")]
DOCS += sorted((ROOT / "docs").rglob("*.md"))
NOT_SHELL = {"promql", "yaml", "toml", "json", "prometheus"}
"""Languages of code blocks that have no commands."""


@dataclass(frozen=True, slots=True, order=True)
class Shown:
    """A text that is shown as a command, or that might be one (`inline`). `after` are the lines before it."""

    place: str
    where: str
    text: str
    inline: bool = False
    after: str = ""


def spans(text: str) -> Iterator[str]:
    """Yield what a text has in backquotes."""
    yield from (" ".join(each.split()) for each in re.findall(r"`([^`]+)`", text))


def inline(place: str, where: str, text: str) -> Iterator[Shown]:
    """Yield the texts in backquotes of which a reader can take several words as a command."""
    yield from (Shown(place, where, each, inline=True) for each in spans(text) if " " in each)


def of_status() -> Iterator[Shown]:
    for name, case in CASES.items():
        for line in status_lines(document_of(case.node(), case.policy)):
            for piece in line.pieces:
                if piece.style is Style.COMMAND:
                    yield Shown("status", name, piece.text)
                else:
                    yield from inline("status", name, piece.text)


class Codes(HTMLParser):
    """The texts of all `code` elements of a page, each with whether it is in a list of commands, and its other text."""

    def __init__(self, page: bytes) -> None:
        super().__init__(convert_charrefs=True)
        self.codes: list[tuple[str, bool]] = []
        self.text = ""
        self._in_code = self._in_commands = False
        self.feed(page.decode())
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element begins."""
        if tag == "ul":
            self._in_commands = ("class", "commands") in attrs
        if tag == "code":
            self._in_code = True
            self.codes.append(("", self._in_commands))

    def handle_endtag(self, tag: str) -> None:
        """An element ends."""
        if tag == "code":
            self._in_code = False
        elif tag == "ul":
            self._in_commands = False

    def handle_data(self, data: str) -> None:
        """Text."""
        if self._in_code:
            text, is_command = self.codes[-1]
            self.codes[-1] = (text + data, is_command)
        else:
            self.text += data


@cache
def pages() -> Mapping[str, Codes]:
    """Return the page of each case."""
    page = Page({})
    return {name: Codes(page.node(status_input(case.node(), policy=case.policy))) for name, case in CASES.items()}


def of_page() -> Iterator[Shown]:
    for name, page in pages().items():
        yield from (Shown("page", name, text, inline=not is_command) for text, is_command in page.codes if " " in text)


def strings(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield all strings of a JSON value with their keys."""
    match value:
        case str():
            yield key, value
        case Mapping():
            for name, each in value.items():
                yield from strings(each, name)
        case list() | tuple():
            for each in value:
                yield from strings(each, key)


def of_json() -> Iterator[Shown]:
    for name, case in CASES.items():
        present = case.node()
        incidents = [
            incident_json(each, present.at, remedy.address_of(present, each.daemon, case.policy))
            for each in present.incidents.values()
        ]
        status = status_json(present, case.policy)
        for key, text in strings([status, incidents]):
            if key in ("commands", "kill_command", "end_server_command"):
                yield Shown("JSON", name, text)
            else:
                yield from inline("JSON", name, text)


def of_answers() -> Iterator[Shown]:
    """Yield the commands in the answer of `resume`."""
    for present in (circuit_open(), quarantined()):
        message = remedy.resume_answer(present, before=False)["message"]
        for line in message.splitlines():
            if ": cuda-mps-exporter" in line:
                yield Shown("resume", "without a name", line.partition("): ")[2])


def of_catalogue() -> Iterator[Shown]:
    for each in PROBLEMS:
        problem = each.definition
        yield from inline("catalogue", each.code, f"{problem.meaning} {problem.remedy} {problem.summary}")
    for situation in Situation:
        yield from inline("catalogue", situation.name, situation.value)


def of_log() -> Iterator[Shown]:
    """Yield the commands in the texts of reasons and of problems, which the log and `status` show."""
    for code in ReasonCode:
        known = {"code": code.value, "pid": 441, "server": 513, "unit": "nvidia-cuda-mps.service", "text": "text"}
        yield from inline("log", code, reason_text(build(Reason, known)))
    for text in ADVICE.values():
        yield from inline("log", "problem", text)


def of_doctor() -> Iterator[Shown]:
    for id_, _, _, make in MISTAKES:
        for finding in found(make()):
            yield from (Shown("doctor", id_, each) for each in commands_of(finding))
            yield from inline("doctor", id_, f"{finding.text} {finding.definition.meaning} {finding.remedy}")


def of_alerts() -> Iterator[Shown]:
    """Yield the commands of annotations: as they are written, and as promtool renders them in the rules' tests."""
    rules = yaml.load((ROOT / "alerts" / "cuda-mps.rules.yml").read_text(), yaml.CSafeLoader)
    for group in rules["groups"]:
        for rule in group["rules"]:
            for text in rule.get("annotations", {}).values():
                yield from inline("alert", rule["alert"], re.sub(r"\{\{.*?\}\}", "", text, flags=re.DOTALL))
    for path in sorted((ROOT / "alerts" / "tests").glob("*.yml")):
        for test in yaml.load(path.read_text(), yaml.CSafeLoader)["tests"]:
            for check in test.get("alert_rule_test", ()):
                for alert in check.get("exp_alerts", ()):
                    for text in alert.get("exp_annotations", {}).values():
                        yield from inline("alert", check["alertname"], text)


def of_dashboards() -> Iterator[Shown]:
    for path in sorted((ROOT / "dashboards").glob("*.json")):
        for key, text in strings(json.loads(path.read_text())):
            if key in ("description", "content"):
                yield from inline("dashboard", path.name, text)


def of_text(place: str, path: Path) -> Iterator[Shown]:
    """Yield the code blocks of a page line by line, and its texts in backquotes."""
    prose, block, language = [], list[str](), None
    for line in [*path.read_text().splitlines(), ""]:
        if line.startswith("```"):
            language = None if language is not None else line[3:].strip()
        elif language is not None:
            if language not in NOT_SHELL and line.startswith("$ "):
                yield Shown(place, path.name, line[2:])
            elif language not in NOT_SHELL and re.match(r"\s+(kill|echo|systemctl|CUDA_MPS_\w+=)", line):
                yield Shown(place, path.name, line.strip())
        elif line.startswith("    ") and line.strip():
            block.append(line[4:])
        else:
            yield from of_block(place, path.name, block)
            block = []
            prose.append(line)
    yield from inline(place, path.name, "\n".join(prose))


def of_block(place: str, where: str, lines: Sequence[str]) -> Iterator[Shown]:
    """Yield the commands of an indented block, each with the lines before it."""
    block = "\n".join(lines).replace("\\\n", " ").splitlines()
    if any(re.match(r"\[\[?\w+\]\]?$|\w+ = |\w+: [\[{]", line) for line in block):
        return  # a configuration
    for number, line in enumerate(block):
        if line.strip():
            yield Shown(place, where, line, after="\n".join(block[:number]))


def of_help() -> Iterator[Shown]:
    """Yield the examples of the help of each command."""
    import argparse

    from exporter.commands import add_arguments

    for command in COMMANDS:
        parser = argparse.ArgumentParser(prog=f"cuda-mps-exporter {command}")
        add_arguments(parser, command)
        assert parser.epilog is not None
        yield Shown("--help", command, parser.epilog.removeprefix("Example: "))


@cache
def collected() -> tuple[Shown, ...]:
    """Return all of them, each once."""
    places = (
        of_status,
        of_page,
        of_json,
        of_answers,
        of_catalogue,
        of_log,
        of_doctor,
        of_alerts,
        of_dashboards,
        of_help,
    )
    shown = {each: None for place in places for each in place()}
    for place, paths in (("runbook", RUNBOOKS), ("docs", DOCS)):
        shown |= {each: None for path in paths for each in of_text(place, path)}
    return tuple(shown)
