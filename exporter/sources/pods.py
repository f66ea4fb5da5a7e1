"""Finds the names of pods, by the directories that the kubelet makes for their logs.

Nothing in these is opened. They lie in a directory of root's that everybody may list (mode 0755), or, where a newer
kubelet made it (one that knows podLogsDir), root's group alone (0750): then it takes CAP_DAC_READ_SEARCH. A node
without it is one without Kubernetes, which is no problem.
"""

import os
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from exporter.clock import Clock
from exporter.model.observation import PodFound
from exporter.model.problem import of_error
from exporter.parse.cgroup import parse_pod_directory
from exporter.sources.eye import Reading

MOST_DIRECTORIES = 4096
"""How many are looked through. The kubelet runs 110 pods by default, and removes the directories of dead ones."""


class Pods:
    """The pods of this node that have logs."""

    def __init__(self, directory: Path, *, clock: Clock) -> None:
        self._directory = directory
        self._clock = clock
        self._wanted: frozenset[str] = frozenset()

    def watch(self, uids: frozenset[str]) -> None:
        """Say which pods' names are wanted, from the next look on."""
        self._wanted = uids

    def look(self) -> Reading:
        """The names of the pods that are wanted, where they can be had; the directory is left alone where none is."""
        wanted = self._wanted
        if not wanted:
            return Reading()
        try:
            with os.scandir(self._directory) as entries:
                names = [entry.name for entry in islice(entries, MOST_DIRECTORIES)]
        except (FileNotFoundError, NotADirectoryError):
            return Reading()
        except OSError as error:
            return Reading(problem=of_error(self._directory, error))
        return Reading(tuple(self._named(names, wanted)))

    def _named(self, directories: Iterable[str], wanted: frozenset[str]) -> Iterable[PodFound]:
        for found in map(parse_pod_directory, sorted(directories)):
            if found is not None and found.uid in wanted:
                yield PodFound(at=self._clock.now(), uid=found.uid, name=found.name, namespace=found.namespace)
