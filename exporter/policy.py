"""The policy of the watchdog that follows from the configuration."""

from dataclasses import replace

from exporter.config.settings import Config
from exporter.watchdog.context import DaemonPolicy, Policy


def policy_of(config: Config) -> Policy:
    """Return the policy of the watchdog. The general mode applies to a daemon that is not configured."""
    daemon_policies = {
        daemon.name: DaemonPolicy(
            mode=daemon.watchdog, unit=daemon.unit, command=daemon.restart_command, limits=daemon.limits
        )
        for daemon in config.daemons
    }
    return Policy(
        mode=config.watchdog,
        thresholds=replace(config.constants.rules, allow=config.watchdog_allow),
        daemon_policies=daemon_policies,
        program=config.constants.control_executable,
    )
