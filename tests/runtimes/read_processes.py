"""Prints what the exporter's collectors report of processes, given by their PIDs, as JSON."""

import json
import sys
from pathlib import Path

from exporter.clock import SystemClock
from exporter.collectors.processes import Processes
from exporter.model.observation import ProcessReading
from exporter.state.processes import cgroup_of, workload_of


def main() -> None:
    """Read the processes once."""
    processes = Processes(proc=Path("/proc"), clock=SystemClock(), wait=0.0)
    processes.watch(frozenset(map(int, sys.argv[1:])))
    found = {}
    for reading in processes.collect().observations:
        assert isinstance(reading, ProcessReading)
        member, workload = cgroup_of(reading), workload_of(reading)
        assert workload is not None
        found[reading.pid] = {
            "uid": reading.uid,
            "workload": (workload.kind, workload.name),
            "job": (member.job_manager, member.job_id, member.job_slot),
        }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
