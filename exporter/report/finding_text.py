"""A finding in a terminal: what is wrong, what it means, where it is, and what to do."""

from collections.abc import Collection, Iterator

from exporter.report.finding import Finding
from exporter.report.problem import Severity
from exporter.report.text import SEVERITY_STYLES, Line, Piece, dim, line_of, shell_command, step_lines

MOST_PLACES = 5


def severity_piece(severity: Severity) -> Piece:
    """Return the name of a severity. Upper case also shows without colours."""
    return Piece(severity.upper() if severity is Severity.CRITICAL else severity.value, SEVERITY_STYLES[severity])


def finding_lines(finding: Finding, *heading: Piece | str, above: Collection[str] = ()) -> Iterator[Line]:
    """Yield the text behind a heading, the meaning, the places, the remedy, its commands and steps, and the page.

    The commands that stand `above` are left out.
    """
    more = len(finding.places) - MOST_PLACES
    yield line_of(*heading, finding.text, indent=2)
    yield line_of(f"  {finding.definition.meaning}", indent=2)
    yield from (line_of(f"  - {place}") for place in finding.places[:MOST_PLACES])
    if more > 0:
        yield line_of(f"  - and {more} more")
    if finding.remedy:
        yield line_of(f"  {finding.remedy}", indent=2)
    yield from (line_of("    ", shell_command(command)) for command in finding.commands if command not in above)
    yield from step_lines(finding.steps)
    if finding.definition.page is not None:
        yield line_of(dim(f"  See {finding.definition.page}"))
