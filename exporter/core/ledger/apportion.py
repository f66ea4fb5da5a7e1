"""Whole numbers, added up and divided: into whole parts that are together exactly it, by the largest remainders."""

import math
from collections.abc import Iterable, Mapping
from typing import TypeVar

Key = TypeVar("Key")

ONE = 1 << 40
"""A fraction is taken to this precision."""


def apportioned(whole: int, weights: Mapping[Key, int]) -> dict[Key, int]:
    """The whole in proportion to these weights, none of which is negative; nothing where they are all 0."""
    weighty = {key: weight for key, weight in weights.items() if weight > 0}
    total = sum(weighty.values())
    if whole <= 0 or not total:
        return {}
    parts = {key: whole * weight // total for key, weight in weighty.items()}
    by_remainder = sorted(weighty, key=lambda key: -(whole * weighty[key] % total))
    for key in by_remainder[: whole - sum(parts.values())]:
        parts[key] += 1
    return {key: part for key, part in parts.items() if part}


def fractions(parts: Mapping[Key, float], rest: Key) -> dict[Key, int]:
    """Weights for these fractions of one, and for the rest of it.

    What is no fraction counts as the nearest one, what is no number as nothing; of too many, each has less.
    """
    weights = {key: _weight(part) for key, part in parts.items()}
    weights[rest] = weights.get(rest, 0) + max(0, ONE - sum(weights.values()))
    return weights


def added(sums: Mapping[Key, int], amounts: Iterable[tuple[Key, int]]) -> Mapping[Key, int]:
    """The sums with these amounts on top; a key may come several times."""
    grown = dict(sums)
    for key, amount in amounts:
        grown[key] = grown.get(key, 0) + amount
    return grown


def _weight(part: float) -> int:
    return 0 if math.isnan(part) else round(ONE * min(max(part, 0.0), 1.0))
