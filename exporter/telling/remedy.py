"""What ends a client that holds up its server's recovery, as commands for a shell."""

from shlex import quote


def commands_to_end(server: int, pid: int, pipe_directory: str | None) -> tuple[str, ...]:
    """The commands, the gentler one first: the second is for where the first does not help.

    MPS itself is only asked where `pipe_directory` is known and can be written on one line. None at all for who has no
    PID here: to `kill`, a negative number would be a group of processes.
    """
    if pid <= 1:
        return ()
    kill = f"kill -KILL {pid}"
    if server <= 1 or pipe_directory is None or not pipe_directory.isprintable():
        return (kill,)
    where = f"CUDA_MPS_PIPE_DIRECTORY={quote(pipe_directory)}"
    return f'echo "terminate_client {server} {pid}" | {where} nvidia-cuda-mps-control', kill
