"""`replay`: a recording is read again."""

import json
import sys
from argparse import Namespace
from dataclasses import replace

from prometheus_client import generate_latest

from exporter import log
from exporter.config.settings import Config
from exporter.metrics.catalogue import NodeCollector
from exporter.model.settings import Mode
from exporter.model.usage import AttributionState
from exporter.recording import Recording, opened
from exporter.state.reducer import reduce_all
from exporter.view import View
from exporter.watchdog.dry_run import dry_run, policy_for


def replay(arguments: Namespace, config: Config) -> int:
    """Tell what a recording tells: its events as they happen, or the metrics as they stand at its end."""
    log.configure(config.log_level, config.log_format, sys.stderr)
    policy = None
    with opened(arguments.file, "r") as file:
        recording = Recording(file)
        last = replace(recording.header.node(), attribution=AttributionState(equal=arguments.attribution == "equal"))
        told = reduce_all(last, recording.observations())
        if arguments.watchdog is not None:
            rules = replace(config.constants.rules, allow=config.watchdog_allow)
            policy = policy_for(last, Mode(arguments.watchdog), rules)
            told = dry_run(last, recording.observations(), policy)
        for node, events in told:
            last = node
            for event in events if arguments.events else ():
                print(json.dumps(event.as_json()), flush=True)
    if arguments.metrics:
        view = View(last, config.client_min_age, policy=policy)
        sys.stdout.write(generate_latest(NodeCollector(view)).decode())
    sys.stdout.flush()
    return 0
