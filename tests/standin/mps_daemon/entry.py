"""The supported command line of nvidia-cuda-mps-control."""

import sys

from .names import pipe_directory


def main(arguments: list[str]) -> int:
    """Run the daemon (-d in the background, -f in the foreground) or a client."""
    if arguments == ["-v"]:
        return _print_version()
    if arguments and arguments[0] in ("-d", "-f"):
        return _be_daemon(arguments)
    from .client import main as be_client

    return be_client(arguments)


def _print_version() -> int:
    """Print the version. Programs of older drivers may not know this option."""
    from . import wording

    driver = wording.branch_of(pipe_directory())
    if driver < wording.MEASURED:
        print("Unknown option -v", file=sys.stderr)
        return 1
    print(f"CUDA MPS Control binary version: {wording.BINARY_VERSIONS[driver]}")
    return 0


def _be_daemon(arguments: list[str]) -> int:
    """Import the daemon's modules only here, because clients start hundreds of times."""
    from . import control, launch

    if launch.has_its_name():
        return control.main(arguments)
    if arguments[0] == "-d":
        return launch.start_in_background(arguments)
    launch.become_daemon_process(arguments)
    raise AssertionError("exec returned")
