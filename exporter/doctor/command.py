"""`doctor`: the preflight, with the configuration as far as it can be used."""

import json
import os
import sys
from argparse import Namespace
from collections.abc import Mapping

from exporter.app import collect_once
from exporter.clock import SystemClock
from exporter.config.load import build_config
from exporter.config.settings import Config, Constants
from exporter.doctor import examine, report_lines, report_object
from exporter.doctor.readers import gather
from exporter.errors import ConfigError
from exporter.logger import configured_at_first_record
from exporter.terminal import Terminal, progress


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
    config, problem = nearest_config(arguments, os.environ, constants=constants)

    def configure() -> None:
        from exporter import log

        log.configure(config.log_level, config.log_format, sys.stderr)

    path = os.environ.get("PATH", os.defpath)
    with progress(sys.stderr, "Examining the node ..."), configured_at_first_record(configure):
        facts = gather(config, path, SystemClock(), collect=collect_once, config_problem=problem)
    report, terminal = examine(facts), Terminal(sys.stdout, os.environ)
    if arguments.json:
        terminal.show_text(json.dumps(report_object(report, facts), indent=2) + "\n")
    else:
        terminal.show(report_lines(report, facts, verbose=arguments.verbose))
    return report.exit_code
