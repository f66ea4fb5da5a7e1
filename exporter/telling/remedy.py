"""What a person can do, as a command for a shell."""

from shlex import quote

from exporter.parse.printable import printable


def command_to_end(pid: int) -> str | None:
    """What ends a client: SIGKILL. None for who has no PID here: to `kill`, a negative number would be a group.

    MPS itself is not asked: after `terminate_client` for a client that a fault has hit, the control daemon answers
    nobody, until that client has gone by other means (measured, R580).
    """
    return None if pid <= 1 else f"kill -KILL {pid}"


def command_to_end_server(server: int, pipe_directory: str | None) -> str | None:
    """What ends a server that does not recover though nobody holds it up: nothing gentler did (measured, R580).

    None where the daemon is not known by a directory that can be written on one line.
    """
    return None if server <= 1 else command_to_tell(f"shutdown_server {server} -f", pipe_directory)


def command_to_tell(command: str, pipe_directory: str | None) -> str | None:
    """What gives a control daemon one of our own commands; None as above."""
    if pipe_directory is None or not pipe_directory.isprintable():
        return None
    return f'echo "{command}" | CUDA_MPS_PIPE_DIRECTORY={quote(pipe_directory)} nvidia-cuda-mps-control'


def command_to_resume(daemon: str) -> str:
    """What has a daemon restarted again that the watchdog has given up."""
    return f"cuda-mps-exporter resume {quote(printable(daemon))}"
