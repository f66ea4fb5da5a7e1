"""`replay`: shows a recording. It needs no service and no collector."""

import json
import sys
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import replace
from importlib import resources

from prometheus_client import generate_latest

from exporter import log
from exporter.config.settings import Config
from exporter.errors import ConfigError
from exporter.metrics.catalogue import NodeCollector
from exporter.model.settings import Mode
from exporter.policy import dry_run, policy_for
from exporter.recording import Recording, open_recording
from exporter.reducer import reduce_all
from exporter.view import View

SAMPLES: Mapping[str, str] = {
    "client_traps": "a kernel of one client executes a trap; the fault ends its neighbours too",
    "two_gpus_fault_on_0": "a client that uses two GPUs joins them: a fault on one ends the clients on both",
    "control_killed": "the control daemon is killed, and its server and clients end",
    "control_hangs": "the control daemon does not answer for a while",
    "crash_loop": "each new server exits before it is ready, so no client can connect",
    "client_bypasses": "a process uses the GPU without MPS",
}
"""What happens in each sample, a recording of an H200 with driver R580."""

_SAMPLE = "sample:"


def replay(arguments: Namespace, config: Config) -> int:
    """Print the events of a recording, or the metrics at its end, or the list of samples."""
    if arguments.list:
        print("\n".join(f"{_SAMPLE}{name:20} {what}" for name, what in SAMPLES.items()))
        return 0
    log.configure(config.log_level, config.log_format, sys.stderr)
    policy = None
    with open_recording(_file(arguments.file), "r") as file:
        recording = Recording(file)
        node = recording.header.node()
        if arguments.watchdog is None:
            states = reduce_all(node, recording.observations())
        else:
            thresholds = replace(config.constants.rules, allow=config.watchdog_allow)
            policy = policy_for(node, Mode(arguments.watchdog), thresholds)
            states = dry_run(node, recording.observations(), policy)
        for node, events in states:  # noqa: B007 (used after the loop)
            for event in events if arguments.events else ():
                print(json.dumps(event.as_json()), flush=True)
    if arguments.metrics:
        view = View(node, config.client_min_age, policy=policy)
        sys.stdout.write(generate_latest(NodeCollector(view)).decode())
    sys.stdout.flush()
    return 0


def _file(name: str | None) -> str:
    """Return the path of a recording. Raises ConfigError if there is no name, or no such sample."""
    if name is None:
        raise ConfigError("FILE is missing: name a recording, or a sample that `replay --list` shows")
    if not name.startswith(_SAMPLE):
        return name
    sample = name.removeprefix(_SAMPLE)
    if sample not in SAMPLES:
        raise ConfigError(f"no sample {sample!r}: the samples are {', '.join(SAMPLES)}")
    return str(resources.files("exporter") / "samples" / f"{sample}.jsonl.gz")
