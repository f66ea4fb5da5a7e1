"""The environment of a process, as /proc/PID/environ has it (proc_pid_environ(5))."""


def is_intact(environment: bytes) -> bool:
    """Return whether all of it is assignments: it is not empty, as during execve(2), and not overwritten.

    A process may overwrite its environment, as setproctitle does with the process title and zeros.
    """
    return all(b"=" in variable for variable in environment.removesuffix(b"\0").split(b"\0"))
