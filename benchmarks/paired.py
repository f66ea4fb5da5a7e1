"""Confidence bound of a few paired differences."""

import statistics
from collections.abc import Sequence

STUDENT_95 = (
    6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782, 1.771, 1.761, 1.753,
    1.746, 1.740, 1.734, 1.729, 1.725, 1.721, 1.717, 1.714, 1.711, 1.708, 1.706, 1.703, 1.701, 1.699, 1.697,
)  # fmt: skip
"""Student's t, 95 % one-sided, by degrees of freedom from 1 to 30."""


def upper_bound(differences: Sequence[float]) -> float:
    """Return the upper 95 % bound of the true difference, for 2 to 31 differences."""
    count = len(differences)
    error: float = statistics.stdev(differences) / count**0.5
    return statistics.fmean(differences) + STUDENT_95[count - 2] * error
