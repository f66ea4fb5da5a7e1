"""Links between the dashboards: from a row of a table to its node or incident, and from each header to the others."""

from collections.abc import Sequence

from dashboards.query import Json

_SAME = "var-datasource=${datasource}&${cluster:queryparam}&${job:queryparam}"
TITLES = {
    "cuda-mps-fleet": "Fleet",
    "cuda-mps-usage": "Usage and cost",
    "cuda-mps-reliability": "Reliability",
    "cuda-mps-incident": "Incident",
    "cuda-mps-node": "Node",
    "cuda-mps-accounting": "Accounting",
}
OF_CHOSEN_NODES = frozenset(("cuda-mps-node", "cuda-mps-accounting"))
"""Those that read the raw series of the chosen nodes. A link to them never chooses all nodes."""


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
            "url": f"/d/{other}?{_SAME}" + ("&${instance:queryparam}" if _same_nodes(uid, other) else ""),
        }
        for other, title in TITLES.items()
        if other != uid
    ]


def _same_nodes(uid: str, other: str) -> bool:
    return uid in OF_CHOSEN_NODES or other not in OF_CHOSEN_NODES


def to_node(field: str = "Node") -> Json:
    """The node that a column names, over the same time."""
    return {
        "title": "Show this node",
        "url": f"/d/cuda-mps-node?{_SAME}&var-instance=${{__data.fields.{field}:percentencode}}&${{__url_time_range}}",
    }


def to_incident() -> Json:
    """The incident of a row, with the time around it, which stands in two columns beside it, in milliseconds."""
    return {
        "title": "Show this incident",
        "url": (
            f"/d/cuda-mps-incident?{_SAME}&var-instance=${{__data.fields.Node:percentencode}}"
            "&var-incident=${__data.fields.Incident:percentencode}"
            "&from=${__data.fields.From.numeric}&to=${__data.fields.To.numeric}"
        ),
    }
