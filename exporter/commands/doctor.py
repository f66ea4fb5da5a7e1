"""`doctor`: the preflight."""

import json
import os
import sys
from argparse import Namespace

from exporter import log
from exporter.clock import SystemClock
from exporter.config.load import nearest_config
from exporter.config.settings import Constants
from exporter.doctor.checks import examine
from exporter.doctor.finding import report_object, report_text
from exporter.doctor.gather import gather
from exporter.one_shot import collect_once


def doctor(arguments: Namespace, constants: Constants | None = None) -> int:
    """Report common mistakes and their fixes. An unusable configuration is one of them."""
    config, problem = nearest_config(arguments, os.environ, constants=constants)
    log.configure(config.log_level, config.log_format, sys.stderr)
    path = os.environ.get("PATH", os.defpath)
    facts = gather(config, path, SystemClock(), collect=collect_once, config_problem=problem)
    report = examine(facts)
    if arguments.json:
        sys.stdout.write(json.dumps(report_object(report, facts), indent=2) + "\n")
    else:
        sys.stdout.write(report_text(report, facts, verbose=arguments.verbose))
    return report.exit_code
