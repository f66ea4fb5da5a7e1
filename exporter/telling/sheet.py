"""What `status` shows, in parts: a terminal shows what there is room for."""

from dataclasses import dataclass

from exporter.telling.line import Line


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """How the node is. `at` is when that was so, in seconds since the epoch.

    `head` is that at a glance, `table` who is there and who falls with whom, `sharing` how well they share their GPUs,
    `troubles` what is not well, with all that is known of it, `past` the faults that are over.
    """

    at: float
    head: tuple[Line, ...]
    table: tuple[Line, ...]
    troubles: tuple[Line, ...]
    past: tuple[Line, ...]
    sharing: tuple[Line, ...] = ()
