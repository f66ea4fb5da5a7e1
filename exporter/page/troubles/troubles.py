"""All that is the matter, the gravest first."""

from exporter.page.level import Level
from exporter.page.sight import Sight
from exporter.page.troubles.blind_spots import blind_spots
from exporter.page.troubles.daemons import daemon_troubles
from exporter.page.troubles.faults import fault_troubles
from exporter.page.troubles.gpus import demanded_resets, processes_beside
from exporter.page.troubles.limits import drifted_limits, full_servers
from exporter.page.troubles.trouble import Trouble
from exporter.telling.moment import lasting

_KINDS = (
    fault_troubles,
    daemon_troubles,
    demanded_resets,
    full_servers,
    processes_beside,
    drifted_limits,
    blind_spots,
)
"""In the order in which equally grave ones are told."""


def troubles(sight: Sight) -> tuple[Trouble, ...]:
    """All of them. Where the exporter itself stands still, nothing else that it knows is current."""
    if sight.stood_still is not None:
        return (_standing_still(sight.stood_still),)
    if not sight.node.sources:
        return (Trouble(level=Level.UNKNOWN, what="nothing has been seen yet", next="wait some seconds"),)
    found = (trouble for kind in _KINDS for trouble in kind(sight))
    return tuple(sorted(found, key=lambda each: -each.level.rank))


def _standing_still(seconds: float) -> Trouble:
    return Trouble(
        level=Level.GRAVE,
        what=f"the exporter has stood still for {lasting(seconds)}, so that nothing below is current",
        next="restart it",
        commands=("systemctl restart cuda-mps-exporter",),
    )
