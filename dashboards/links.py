"""Links from a row of a table to the dashboard of its node or incident."""

from dashboards.query import Json

_SAME = "var-datasource=${datasource}&${job:queryparam}"


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
