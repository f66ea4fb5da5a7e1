"""Whether a client that a fault hit had work in flight, in a few words."""

from collections.abc import Mapping

from exporter.model.incident import Incident


def in_flight(incident: Incident) -> Mapping[int, bool]:
    """Of whom it is known, by PID."""
    return {each.pid: each.in_flight for each in incident.clues.flights}


def flying(incident: Incident) -> Mapping[int, str]:
    """What to say of each of whom it is known, after who it is."""
    words = {True: ", with work in flight", False: ", with nothing in flight"}
    return {pid: words[flies] for pid, flies in in_flight(incident).items()}
