"""The answers about a fleet as tables. The report for mail has the same queries."""

from collections.abc import Mapping
from string import ascii_uppercase

from dashboards import looks
from dashboards.answers import LIMIT, Answer, Unit
from dashboards.links import to_node
from dashboards.panel import Column, Panel, table
from dashboards.query import CLUSTER

HOURS = "suffix: h"
UNITS: Mapping[Unit, str] = {
    Unit.HOURS: HOURS,
    Unit.COST: looks.COUNT,
    Unit.COUNT: looks.COUNT,
    Unit.RATIO: looks.RATIO,
    Unit.BYTES: looks.BYTES,
    Unit.GIGABYTE_HOURS: "suffix: GB h",
    Unit.KILOWATT_HOURS: looks.KILOWATT_HOURS,
    Unit.RISK: looks.NUMBER,
}


def answer_table(answer: Answer, more: str = "", *, many: bool = False, width: int = 24, height: int = 10) -> Panel:
    """The first rows of an answer over the selected time range. `more` is appended to its description.

    Prometheus selects the rows if there are `many`, which takes it twice as long. Grafana selects them otherwise.
    """
    values = ("Value",) if len(answer.columns) == 1 else tuple(f"Value #{letter}" for letter in ascii_uppercase)
    return table(
        answer.title,
        f"{answer.meaning} {more}".strip(),
        answer.queries("$__range", CLUSTER, LIMIT if many else None),
        {
            **{
                label: Column(heading, links=to_node("cluster") if heading == "Node" else ())
                for label, heading in answer.labels.items()
                if heading
            },
            **{
                value: Column(
                    column.heading, UNITS[column.unit], mappings=looks.RISKS if column.unit is Unit.RISK else ()
                )
                for value, column in zip(values, answer.columns, strict=False)
            },
        },
        sort=(answer.columns[0].heading, not answer.ascending),
        limit=LIMIT,
        width=width,
        height=height,
    )
