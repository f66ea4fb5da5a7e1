"""What ends a client that holds up its server's recovery, as commands for a shell."""

from shlex import quote


def commands_to_end_server(server: int, pipe_directory: str | None) -> tuple[str, ...]:
    """What ends a server that does not recover though nobody holds it up: nothing gentler did (measured, R580)."""
    where = _where(server, pipe_directory)
    return () if where is None else (f'echo "shutdown_server {server} -f" | {where} nvidia-cuda-mps-control',)


def commands_to_end(server: int, pid: int, pipe_directory: str | None) -> tuple[str, ...]:
    """The commands, the gentler one first: the second is for where the first does not help.

    MPS itself is only asked where `pipe_directory` is known and can be written on one line. None at all for who has no
    PID here: to `kill`, a negative number would be a group of processes.
    """
    if pid <= 1:
        return ()
    kill = f"kill -KILL {pid}"
    where = _where(server, pipe_directory)
    if where is None:
        return (kill,)
    return f'echo "terminate_client {server} {pid}" | {where} nvidia-cuda-mps-control', kill


def _where(server: int, pipe_directory: str | None) -> str | None:
    if server <= 1 or pipe_directory is None or not pipe_directory.isprintable():
        return None
    return f"CUDA_MPS_PIPE_DIRECTORY={quote(pipe_directory)}"
