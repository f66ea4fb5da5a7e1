"""Reliability of a fleet: the share of good client-minutes, what reduces it, and the suspects of faults."""

from dashboards import answers, looks
from dashboards.answer_table import answer_table
from dashboards.board import Board, Row
from dashboards.panel import Panel, bars, lines, matrix, stat
from dashboards.query import Query, most_recorded, recorded
from dashboards.slo import BURN_RATES, CLIENT_MINUTES

_FAULTED = "application:cuda_mps_faulted_clients:increase10m"
WINDOWS = {long: (f"{long[:-1]} {long[-1]}", float(rate)) for each in BURN_RATES.values() for long, _, rate in each}
"""The windows of the alert on the error budget, each with its name and the burn rate from which the alert fires."""


def _error_ratio(window: str) -> str:
    """Return the fraction of client-minutes with a fault, a refusal or a bypass."""
    asked = f'sum(sum_over_time({CLIENT_MINUTES}{{clusters, outcome!="faulted"}}[{window}]))'
    return f'(sum(sum_over_time({CLIENT_MINUTES}{{clusters, outcome!="served"}}[{window}])) or 0 * {asked}) / {asked}'


def _burn_rate(window: str, objective: float) -> str:
    return f"({_error_ratio(window)}) / {1 - objective:g}"


def _burn(window: str, name: str, fires: float, objective: float) -> Panel:
    return stat(
        f"Burn rate, {name}",
        f"How many times faster than allowed the error budget was used in the last {name}. The alert fires from "
        f"{fires:g} on, if a shorter window confirms it.",
        _burn_rate(window, objective),
        unit=looks.NUMBER,
        thresholds=looks.steps(looks.Colour.WELL, (1, looks.Colour.WARNING), (max(fires, 1.01), looks.Colour.BAD)),
        width=4,
    )


def _level(objective: float) -> Row:
    return Row(
        "Service level",
        (
            stat(
                "Good client-minutes",
                "Share of client-minutes without fault, refusal or bypass in the selected time range. Each client that "
                "a fault ended or that was refused counts as one minute.",
                f"1 - {_error_ratio('$__range')}",
                unit=looks.RATIO,
                thresholds=looks.steps(looks.Colour.BAD, (objective, looks.Colour.WELL)),
                width=6,
            ),
            stat(
                "Budget left",
                "Part of the error budget of the selected time range that is left. "
                f"The objective is {100 * objective:g} %. Below 0, the objective is missed.",
                f"1 - {_burn_rate('$__range', objective)}",
                unit=looks.RATIO,
                thresholds=looks.steps(looks.Colour.BAD, (0, looks.Colour.WARNING), (0.25, looks.Colour.WELL)),
                width=6,
            ),
            *(_burn(window, name, fires, objective) for window, (name, fires) in WINDOWS.items()),
            lines(
                "Burn rates over time",
                "How many times faster than allowed the error budget was used, until then. The dashed line is burn "
                "rate 1, which uses exactly the budget.",
                *(
                    Query(_burn_rate(window, objective), f"in the {name} before", interval="10m")
                    for window, (name, _) in WINDOWS.items()
                ),
                Query("vector(1)", "allowed"),
                unit=looks.NUMBER,
                limit="allowed",
                height=9,
            ),
            bars(
                "Lost client-minutes",
                "Clients that faults ended, clients that were refused, and minutes of processes that bypass MPS.",
                recorded(CLIENT_MINUTES, "outcome", "{{outcome}}", ', outcome!="served"', of="clusters"),
                height=9,
            ),
            answer_table(answers.SLO_BY_CLUSTER, height=5),
        ),
    )


NODES = Row(
    "Worst nodes",
    (answer_table(answers.SLO_BY_NODE, height=14),),
)

_PAIR = "suspect_namespace, suspect_application, client_namespace, application"


def _by_pair() -> str:
    """Return the clients that each suspect ended, with suspect and affected application in one label each."""
    found = f'topk(200, sum by ({_PAIR}) (sum_over_time({_FAULTED}{{clusters, confidence=~"high|medium"}}[$__range])))'
    for label, parts in (
        ("suspect", '"suspect_namespace", "suspect_application"'),
        ("affected", '"client_namespace", "application"'),
    ):
        found = f'label_join({found}, "{label}", "/", {parts})'
    return f"sum by (suspect, affected) ({found})"


CRASHES = Row(
    "Suspects and affected applications",
    (
        matrix(
            "Matrix of suspects and affected applications",
            "Clients that faults ended: the main suspect in the row, the affected application in the column, both "
            "with their namespace. Only with high or medium confidence. Empty: there was none.",
            _by_pair(),
            rows="suspect",
            columns="affected",
            height=9,
        ),
        answer_table(answers.CRASHES, width=14),
        answer_table(answers.FAULTS, width=10),
        bars(
            "Clients that faults ended",
            "Clients that faults ended, by the confidence in the suspect.",
            recorded(_FAULTED, "confidence", "confidence: {{confidence}}", of="clusters"),
        ),
        bars(
            "Faults by suspected application",
            "Faults of the ten applications that most often were the main suspect, which is no proof.",
            most_recorded(
                "application:cuda_mps_faults_caused:increase10m",
                "cluster, client_namespace, application",
                "{{client_namespace}} {{application}} {{cluster}}",
            ),
        ),
    ),
)


def reliability(objective: float) -> Board:
    """Return the dashboard for an objective: the promised fraction of good client-minutes."""
    return Board(
        uid="cuda-mps-reliability",
        title="CUDA MPS / Reliability",
        description="Share of client-minutes without fault, refusal or bypass; its error budget; suspects of faults.",
        rows=(_level(objective), NODES, CRASHES),
        since="now-30d",
        refresh="5m",
    )
