"""A condition has one name: the table in ARCHITECTURE.md, codes, states, alerts, runbooks and texts agree."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from exporter.model.watchdog import BlockReason, Condition, WatchdogPhase
from exporter.report.daemon_findings import STATE_PROBLEMS
from exporter.report.problems import (
    BLOCK_PROBLEMS,
    CONDITION_PROBLEMS,
    PHASE_PROBLEMS,
    PROBLEMS,
    DaemonProblem,
    Problem,
)

ROOT = Path(__file__).parents[1]

VARIANTS = {"process_bypassing_after_death": "process_bypassing"}
"""The graver forms of a problem, which have its alert with another severity."""

TEXTS = [
    ROOT / "README.md",
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "alerts").glob("*.yml"),
    *(ROOT / "alerts" / "runbooks").iterdir(),
    *(ROOT / "dashboards").rglob("*.py"),
    *(
        path
        for package in ("commands", "config", "doctor", "metrics", "model", "page", "report")
        for path in (ROOT / "exporter" / package).rglob("*")
        if path.suffix in (".py", ".html", ".js")
    ),
]
"""What users read, and the code that writes it."""


def rows() -> Iterator[Sequence[str]]:
    """Yield the name, the meaning, the codes and the refused names of each condition in the table."""
    section = (ROOT / "ARCHITECTURE.md").read_text().split("## Names of conditions", 1)[1].split("\n## ", 1)[0]
    for line in re.findall(r"^\| (.*?) ?\|$", section, re.MULTILINE)[1:]:
        yield [cell.strip() for cell in line.split(" |")]


def alert_of(code: str) -> str:
    return "CudaMps" + code.title().replace("_", "")


def test_an_alert_is_named_after_its_problem() -> None:
    named = {(problem.code, problem.definition.alert) for problem in PROBLEMS if problem.definition.alert is not None}
    assert named == {(code, alert_of(VARIANTS.get(code, code))) for code, _ in named}


def test_a_problem_is_named_after_its_condition() -> None:
    tables: Sequence[Mapping[Condition | WatchdogPhase | BlockReason, Problem]] = (
        CONDITION_PROBLEMS,  # type: ignore[assignment]
        PHASE_PROBLEMS,
        STATE_PROBLEMS,
        BLOCK_PROBLEMS,
    )
    for table in tables:
        for name, problem in table.items():
            assert problem.code.endswith(name.value) or problem is DaemonProblem.WELL, name


def test_the_table_names_problems_with_their_alerts() -> None:
    known = {problem.code: problem.definition.alert for problem in PROBLEMS}
    listed = [re.findall(r"`(\w+)`", codes) for _, _, codes, _ in rows()]
    assert len(listed) > 10
    for problem, *alert in filter(None, listed):
        assert alert == [known[problem]] or (alert, known[problem]) == ([], None)


def test_no_text_has_another_name() -> None:
    refused = [name for *_, names in rows() for name in names.split(", ") if name]
    pattern = re.compile(rf"(?<![\w-])({'|'.join(refused)})\b".replace(" ", r"\s+"), re.IGNORECASE)
    found = [f"{path.relative_to(ROOT)}: {name}" for path in TEXTS for name in pattern.findall(path.read_text())]
    assert found == []
