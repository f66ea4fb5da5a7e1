"""How values look: units, thresholds, and states, which have a word each beside their colour."""

from collections.abc import Mapping
from enum import StrEnum

from dashboards.query import Json

BYTES, RATIO, SECONDS, NUMBER = "bytes", "percentunit", "s", "none"
COUNT, WORD, MOMENT = "short", "string", "dateTimeAsIso"
WATTS, CELSIUS, PER_SECOND, EVENTS = "watt", "celsius", "cps", "short"
KILOWATT_HOURS = "kwatth"


class Colour(StrEnum):
    """Grafana's names; the semi-dark ones can be read in both of its themes."""

    WELL = "semi-dark-green"
    NEWS = "semi-dark-blue"
    ODD = "semi-dark-yellow"
    WARNING = "semi-dark-orange"
    BAD = "semi-dark-red"
    QUIET = "text"


def steps(first: Colour, *others: tuple[float, Colour]) -> Json:
    """A colour from each value on."""
    return {
        "mode": "absolute",
        "steps": [{"color": first, "value": None}, *({"color": colour, "value": value} for value, colour in others)],
    }


NONE_IS_WELL = steps(Colour.WELL, (1, Colour.BAD))
NONE_IS_WELL_SOME_ARE_ODD = steps(Colour.WELL, (1, Colour.WARNING))
FILLING = steps(Colour.WELL, (0.8, Colour.WARNING), (0.95, Colour.BAD))
PLAIN = steps(Colour.QUIET)


def words(texts: Mapping[float, tuple[str, Colour]]) -> list[Json]:
    """Return what is shown instead of each value."""
    return [
        {
            "type": "value",
            "options": {
                f"{value:g}": {"text": text, "color": colour, "index": index}
                for index, (value, (text, colour)) in enumerate(texts.items())
            },
        }
    ]


def states(colours: Mapping[str, Colour]) -> list[Json]:
    """Return the words for the states that `which` numbers."""
    return words({number: (state, colour) for number, (state, colour) in enumerate(colours.items(), start=1)})


RISKS = words({0: ("low", Colour.WELL), 1: ("little data", Colour.WARNING), 2: ("suspected", Colour.WARNING)})
YES_IS_WELL = words({0: ("NO", Colour.BAD), 1: ("yes", Colour.WELL)})
YES_IS_ODD = words({0: ("no", Colour.WELL), 1: ("YES", Colour.WARNING)})
NEVER = words({0: ("-", Colour.QUIET)})
YES_OR_NO = words({0: ("no", Colour.QUIET), 1: ("yes", Colour.NEWS)})
