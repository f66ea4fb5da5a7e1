"""What the configuration tells the watchdog."""

from exporter.config.settings import Config, DaemonConfig
from exporter.core.watchdog.orders import Mandate, Orders


def orders_of(config: Config) -> Orders:
    """The watchdog's orders. A daemon of which the configuration says nothing is under the general mode."""
    return Orders(
        mode=config.watchdog,
        rules=config.rules,
        mandates={daemon.name: _mandate(daemon) for daemon in config.daemons},
        program=config.control_executable,
    )


def _mandate(daemon: DaemonConfig) -> Mandate:
    variables = (each.partition("=") for each in daemon.environment)
    return Mandate(
        mode=daemon.watchdog,
        unit=daemon.unit,
        command=daemon.restart_command,
        environment={name: value for name, _, value in variables},
        limits=daemon.limits,
    )
