"""`replay`: reduce the observations of a recording again."""

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
from exporter.recording import Recording, open_recording
from exporter.state.reducer import reduce_all
from exporter.view import View
from exporter.watchdog.evaluation import dry_run, policy_for


def replay(arguments: Namespace, config: Config) -> int:
    """Print the events of a recording, or the metrics at its end."""
    log.configure(config.log_level, config.log_format, sys.stderr)
    policy = None
    with open_recording(arguments.file, "r") as file:
        recording = Recording(file)
        node = replace(recording.header.node(), attribution=AttributionState(equal=arguments.attribution == "equal"))
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
