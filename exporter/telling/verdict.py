"""Who may have done it, in words: how sure that is, or why nobody is named. Nobody is ever called certain."""

from collections.abc import Sequence
from itertools import takewhile

from exporter.model.incident import FaultKind, Incident, Suspect
from exporter.telling.who import called

LIKELIHOODS = ((0.8, "very likely"), (0.5, "likely"), (0.2, "possibly"))
"""From which confidence on which word may be used of a suspect."""

MOST_LEADERS = 3
"""Of more that are equally likely, nobody stands out."""


def verdict(incident: Incident) -> str:
    """Who may have done it and how likely that is, or why nobody is named."""
    if incident.kind is FaultKind.HARDWARE:
        return "nobody: the hardware failed, so that no tenant is to blame"
    if not incident.suspects:
        return "unknown: nothing points at anybody"
    leaders = leading(incident)
    if not leaders:
        return "unknown: nobody stands out"
    sure = likelihood(sum(each.confidence for each in leaders))
    named = ", ".join(called(each.tenant) for each in leaders)
    return f"{sure} {named}" if len(leaders) == 1 else f"{sure} one of {named}"


def leading(incident: Incident) -> Sequence[Suspect]:
    """The suspects that stand out: the likeliest one, or a few equally likely ones before others who are less so."""
    suspects = incident.suspects
    if incident.kind is FaultKind.HARDWARE or not suspects:
        return ()
    leaders = list(takewhile(lambda each: each.confidence == suspects[0].confidence, suspects))
    equal = len(leaders) == len(suspects) > 1
    least, _ = LIKELIHOODS[-1]
    if equal or len(leaders) > MOST_LEADERS or sum(each.confidence for each in leaders) < least:
        return ()
    return leaders


def likelihood(confidence: float) -> str:
    """A confidence, 0 to 1, as a word."""
    return next((word for least, word in LIKELIHOODS if confidence >= least), "unlikely")
