"""`pause` and `resume`: commands to the running service."""

from argparse import Namespace

from exporter.config.settings import Config
from exporter.errors import ServiceError
from exporter.status_client import SERVICE_SECONDS, parse_answer, query_service


def pause(_arguments: Namespace, config: Config) -> int:
    """Make the service close the GPU driver."""
    return _command(config, "pause")


def resume(arguments: Namespace, config: Config) -> int:
    """Make the service open the driver again, or permit restarts of a daemon again."""
    return _command(config, "resume", **({} if arguments.daemon is None else {"daemon": arguments.daemon}))


def _command(config: Config, command: str, **arguments: str) -> int:
    answer = query_service(config.runtime_directory, command, SERVICE_SECONDS, **arguments)
    if answer is None:
        raise ServiceError(f"no service answers in {config.runtime_directory}; is it running?")
    print(parse_answer(lambda: str(answer["message"])))
    return parse_answer(lambda: int(answer.get("exit_code", 0)))
