"""`pause` and `resume`: the running service is told."""

from argparse import Namespace

from exporter.config.settings import Config
from exporter.errors import ServiceError
from exporter.status_client import SERVICE_SECONDS, ask_service, understood


def pause(_arguments: Namespace, config: Config) -> int:
    """Have the running service let go of the driver."""
    return _command(config, "pause")


def resume(arguments: Namespace, config: Config) -> int:
    """Have it take up the driver again, or restart a daemon again."""
    return _command(config, "resume", **({} if arguments.daemon is None else {"daemon": arguments.daemon}))


def _command(config: Config, command: str, **arguments: str) -> int:
    told = ask_service(config.runtime_directory, command, SERVICE_SECONDS, **arguments)
    if told is None:
        raise ServiceError(f"no service answers in {config.runtime_directory}; is it running?")
    print(understood(lambda: str(told["message"])))
    return understood(lambda: int(told.get("exit_code", 0)))
