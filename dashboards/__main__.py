"""Writes dashboards and rules, the generated ones as they are committed, or all of them for another site."""

import argparse
import contextlib
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path

from dashboards import recording, site, slo
from dashboards.accounting import ACCOUNTING
from dashboards.board import Board
from dashboards.fleet import FLEET
from dashboards.incident import INCIDENT
from dashboards.node import NODE
from dashboards.parameters import DEFAULTS, Parameters
from dashboards.reliability import reliability
from dashboards.usage import USAGE

ROOT = Path(__file__).parents[1]
ALERTS = "alerts/cuda-mps.rules.yml"
RECORDING = "alerts/cuda-mps.recording.yml"
SLO = "alerts/cuda-mps.slo.yml"
PROVISIONING = "dashboards/provisioning/dashboards/cuda-mps.yml"


def boards(parameters: Parameters) -> Sequence[Board]:
    """Return all dashboards, of which `Board.text` writes the site's queries."""
    return FLEET, USAGE, reliability(parameters.objective), INCIDENT, NODE, ACCOUNTING


BOARDS = boards(DEFAULTS)

_MATCHER = re.compile(r'\s*([A-Za-z_]\w*)\s*(=~|!~|!=|=)\s*("(?:[^"\\`]|\\["\\])*")\s*', re.ASCII)
_MATCHERS = re.compile(f"(?:{_MATCHER.pattern},)*{_MATCHER.pattern}", re.ASCII)
_NOT_IN_RE2 = re.compile(r"\(\?(?!:|i\))|\\[^dDsSwW\W]|[*+?}]\+|\{\d{4}")
"""Other groups, references and escapes, possessive quantifiers, and more than 999 repetitions."""


def path(board: Board) -> Path:
    """Where a dashboard stands."""
    return ROOT / "dashboards" / f"{board.uid}.json"


def generated(parameters: Parameters) -> Mapping[str, str]:
    """Return the generated files, by their paths below the root of the repository."""
    return {
        **{f"dashboards/{board.uid}.json": board.text(parameters) for board in boards(parameters)},
        RECORDING: site.with_thresholds(recording.text(parameters), parameters),
        SLO: slo.text(parameters),
    }


def customised(parameters: Parameters) -> Mapping[str, str]:
    """Return all files of a site, by their paths: the generated ones, and those that are written by hand."""
    return {
        **generated(parameters),
        ALERTS: site.alerts((ROOT / ALERTS).read_text(), parameters),
        PROVISIONING: (ROOT / PROVISIONING).read_text(),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the files."""
    parser = _parser()
    options = parser.parse_args(arguments)
    given = {each.name: value for each in fields(Parameters) if (value := getattr(options, each.name)) is not None}
    if options.output is None and given:
        parser.error("--output is needed: the files of this folder have the defaults")
    parameters = replace(DEFAULTS, **{**given, "thresholds": dict(given.get("thresholds", ()))})
    files = generated(parameters) if options.output is None else customised(parameters)
    for name, text in files.items():
        file = (options.output or ROOT) / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dashboards",
        description="Write dashboards, alerts and recording rules for your site. Without options, write the generated "
        "files again where they are.",
        epilog="thresholds: " + ", ".join(f"{name}={each.default}" for name, each in site.THRESHOLDS.items()),
    )
    parser.add_argument("--output", type=Path, metavar="DIR", help="folder to write all files into")
    parser.add_argument("--job", type=_label, help=f"name of the scrape job (default {DEFAULTS.job})")
    parser.add_argument("--selector", type=_selector, help="more matchers of all selectors, such as 'env=\"prod\"'")
    parser.add_argument(
        "--team-label", type=_label_name, help=f"label that names the team (default {DEFAULTS.team_label})"
    )
    parser.add_argument("--gpu-hour-price", type=float, metavar="PRICE", help="price of a GPU hour (default 1)")
    parser.add_argument(
        "--objective",
        type=_fraction,
        metavar="FRACTION",
        help=f"promised fraction of client-minutes without fault, refusal or bypass (default {DEFAULTS.objective})",
    )
    parser.add_argument(
        "--runbook-url",
        metavar="URL",
        help=f"start of the runbook links (default {DEFAULTS.runbook_url}; {{instance}} is the exporter of the alert)",
    )
    parser.add_argument(
        "--page-url",
        type=lambda url: f"{url.rstrip('/')}/",
        metavar="URL",
        help=f"start of the links to the pages of an exporter (default {DEFAULTS.page_url})",
    )
    parser.add_argument(
        "--grafana-url",
        type=lambda url: url.rstrip("/"),
        metavar="URL",
        help=f"start of the dashboard links (default {DEFAULTS.grafana_url})",
    )
    parser.add_argument(
        "--threshold",
        dest="thresholds",
        type=_threshold,
        action="append",
        metavar="NAME=VALUE",
        help="another threshold; may be repeated",
    )
    return parser


def _label(text: str) -> str:
    if any(character in text for character in '"\\`{}\n'):
        raise argparse.ArgumentTypeError("expected a name without quotes, backslashes and braces")
    return text


def _label_name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text):
        raise argparse.ArgumentTypeError("expected the name of a label: letters, digits and underscores")
    return text


def _selector(text: str) -> str:
    """Return matchers without their braces. They are used in templates of annotations, too."""
    matchers = text.strip().rstrip(",")
    if not _MATCHERS.fullmatch(matchers) or not matchers.isprintable() or "{{" in matchers:
        raise argparse.ArgumentTypeError("expected matchers without braces around them, such as 'env=\"prod\"'")
    for name, operator, quoted in _MATCHER.findall(matchers):
        if name == "__name__":
            raise argparse.ArgumentTypeError("the matchers are used with names of metrics, so they cannot have another")
        if operator.endswith("~") and not _is_pattern(json.loads(quoted)):
            raise argparse.ArgumentTypeError(f"{quoted} is not a regular expression that Prometheus and Python know")
    return matchers


def _is_pattern(text: str) -> bool:
    """Return whether a text is a regular expression of Python without what RE2 does not have."""
    with contextlib.suppress(re.error, RecursionError, OverflowError):
        re.compile(text)
        return not _NOT_IN_RE2.search(text)
    return False


def _fraction(text: str) -> float:
    if not 0 < (fraction := float(text)) < 1:
        raise argparse.ArgumentTypeError("expected a number between 0 and 1")
    return fraction


def _threshold(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    if name not in site.THRESHOLDS:
        raise argparse.ArgumentTypeError(f"unknown name '{name}': expected one of {', '.join(site.THRESHOLDS)}")
    return name, float(value)


if __name__ == "__main__":
    sys.exit(main())
