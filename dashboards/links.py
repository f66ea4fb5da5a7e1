"""Links between the dashboards: from a row of a table to its node or incident, and from each header to the others."""

from collections.abc import Sequence

from dashboards.query import Json

_OF_NODES = ("cluster", "job", "instance")
BOARDS = {
    "cuda-mps-fleet": ("Fleet", _OF_NODES),
    "cuda-mps-usage": ("Usage and cost", ("cluster",)),
    "cuda-mps-reliability": ("Reliability", ("cluster",)),
    "cuda-mps-incident": ("Incident", _OF_NODES),
    "cuda-mps-node": ("Node", _OF_NODES),
    "cuda-mps-accounting": ("Accounting", _OF_NODES),
}
"""The title of each dashboard, and the first of its variables."""
OF_CHOSEN_NODES = frozenset(("cuda-mps-node", "cuda-mps-accounting"))
"""Those that read the raw series of the chosen nodes. A link to them never chooses all nodes."""


def _url(board: str, *variables: str) -> str:
    return "&".join((f"/d/{board}?var-datasource=${{datasource}}", *(f"${{{name}:queryparam}}" for name in variables)))


def to_others(uid: str) -> Sequence[Json]:
    """Links to all other dashboards, with the choices that both have."""
    return [
        {
            "asDropdown": False,
            "icon": "external link",
            "includeVars": False,
            "keepTime": True,
            "tags": [],
            "targetBlank": False,
            "title": title,
            "tooltip": "",
            "type": "link",
            "url": _url(other, *(name for name in variables if name in BOARDS[uid][1] and _passes(uid, other, name))),
        }
        for other, (title, variables) in BOARDS.items()
        if other != uid
    ]


def _passes(uid: str, other: str, name: str) -> bool:
    return name != "instance" or uid in OF_CHOSEN_NODES or other not in OF_CHOSEN_NODES


def to_node(*variables: str) -> Json:
    """The node that the column Node names, over the same time. `variables` are passed too; none: cluster and job."""
    node = "var-instance=${__data.fields.Node:percentencode}&${__url_time_range}"
    return {"title": "Show this node", "url": f"{_url('cuda-mps-node', *(variables or ('cluster', 'job')))}&{node}"}


def to_incident() -> Json:
    """The incident of a row, with the time around it, which stands in two columns beside it, in milliseconds."""
    return {
        "title": "Show this incident",
        "url": (
            f"{_url('cuda-mps-incident', 'cluster', 'job')}&var-instance=${{__data.fields.Node:percentencode}}"
            "&var-incident=${__data.fields.Incident:percentencode}"
            "&from=${__data.fields.From.numeric}&to=${__data.fields.To.numeric}"
        ),
    }
