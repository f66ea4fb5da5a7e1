"""The maps that the programs share with the exporter, by name, and what lies where in them."""

PROCESSES = "processes"
"""What each process has done (layout.py)."""

BLANK = "blank"
"""A blank page of that: there is no room for one on a program's stack."""

CALLS = "calls"
"""By thread, the synchronisation that it is in: of which stream, the time before which launches will be done when it
returns, when it was called, and whether it waits for an event."""

EVENTS = "events"
"""By process and event: the stream and the time of its last recording."""

WIDTHS = "widths"
"""How many SMs a process may use, where that is not all."""

WATCH = "watch"
"""An array of single numbers."""

WATCHED_SINCE, LOST, ALL_SMS = 0, 1, 2
"""Their places: since when the doors are watched, for how many launches there was no room, how many SMs a GPU has."""
