"""Links between the dashboards: from a row of a table to its node or incident, and from each header to the others."""

from collections.abc import Sequence

from dashboards.parameters import DEFAULTS
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


NODE = "${__data.fields.Node}"
PAGE = DEFAULTS.page_of(NODE)
"""The page of the node that the column Node names."""


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


def to_node(*variables: str) -> Sequence[Json]:
    """The node that the column Node names, over the same time. `variables` are passed too; none: cluster and job."""
    node = "var-instance=${__data.fields.Node:percentencode}&${__url_time_range}"
    url = f"{_url('cuda-mps-node', *(variables or ('cluster', 'job')))}&{node}"
    return {"title": "Show this node", "url": url}, *to_page()


def to_page() -> Sequence[Json]:
    """The exporter's page of the node that the column Node names."""
    return ({"title": "Open its page", "url": PAGE},)


def to_incident() -> Sequence[Json]:
    """The incident of a row, with the time around it, which stands in two columns beside it, in milliseconds."""
    url = (
        f"{_url('cuda-mps-incident', 'cluster', 'job')}&var-instance=${{__data.fields.Node:percentencode}}"
        "&var-incident=${__data.fields.Incident:percentencode}"
        "&from=${__data.fields.From.numeric}&to=${__data.fields.To.numeric}"
    )
    page = f"{PAGE}incidents/${{__data.fields.Incident:percentencode}}"
    return {"title": "Show this incident", "url": url}, {"title": "Open its page", "url": page}


def to_client() -> Sequence[Json]:
    """The exporter's page of the client of a row."""
    return ({"title": "Open its page", "url": f"{PAGE}clients/${{__data.fields.Client:percentencode}}"},)


def to_death() -> Sequence[Json]:
    """The exporter's page of the death of a row."""
    return ({"title": "Open its page", "url": f"{PAGE}incidents/${{__data.fields.Death:percentencode}}"},)


def to_chosen_incident() -> Sequence[Json]:
    """The exporter's page of the incident that the dashboard shows."""
    return ({"title": "Open its page", "url": f"{PAGE}incidents/${{incident:percentencode}}"},)
