"""What a source brings back from one look."""

from dataclasses import dataclass

from exporter.model.observation import Observation


@dataclass(frozen=True, slots=True)
class Reading:
    """Observations, and the problem that kept the source from seeing all it should, in words for a person."""

    observations: tuple[Observation, ...] = ()
    problem: str | None = None
