"""`doctor` and `replay`: commands that need no service. `replay` imports no collector."""

import json
import os
import sys
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import replace
from importlib import resources

from prometheus_client import generate_latest

from exporter import log
from exporter.clock import SystemClock
from exporter.config.load import build_config
from exporter.config.settings import Config, Constants
from exporter.errors import ConfigError
from exporter.metrics.catalogue import NodeCollector
from exporter.model.settings import Mode
from exporter.policy import dry_run, policy_for
from exporter.recording import Recording, open_recording
from exporter.reducer import reduce_all
from exporter.terminal import Terminal, progress
from exporter.view import View


def nearest_config(
    arguments: Namespace, environment: Mapping[str, str], constants: Constants | None = None
) -> tuple[Config, str | None]:
    """Return the configuration, else one without the file, else one without variables too, and the problem.

    ConfigError names a flag that cannot be used.
    """
    without_file = Namespace(**{**vars(arguments), "config_file": ""})
    problem = None
    for flags, variables in ((arguments, environment), (without_file, environment)):
        try:
            return build_config(flags, variables, constants=constants), problem
        except ConfigError as error:
            problem = problem or str(error)
    return build_config(without_file, {}, constants=constants), problem


def doctor(arguments: Namespace, constants: Constants | None = None) -> int:
    """Report common mistakes and their fixes. An unusable configuration is one of them."""
    from exporter.app import collect_once
    from exporter.doctor import examine, report_lines, report_object
    from exporter.doctor.readers import gather

    config, problem = nearest_config(arguments, os.environ, constants=constants)
    log.configure(config.log_level, config.log_format, sys.stderr)
    path = os.environ.get("PATH", os.defpath)
    with progress(sys.stderr, "Examining the node ..."):
        facts = gather(config, path, SystemClock(), collect=collect_once, config_problem=problem)
    report, terminal = examine(facts), Terminal(sys.stdout, os.environ)
    if arguments.json:
        terminal.show_text(json.dumps(report_object(report, facts), indent=2) + "\n")
    else:
        terminal.show(report_lines(report, facts, verbose=arguments.verbose))
    return report.exit_code


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
