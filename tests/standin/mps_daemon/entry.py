"""The supported command line of nvidia-cuda-mps-control."""

from .names import BINARY_VERSION


def main(arguments: list[str]) -> int:
    """Run the daemon (-d in the background, -f in the foreground) or a client."""
    if arguments == ["-v"]:
        print(f"CUDA MPS Control binary version: {BINARY_VERSION}")
        return 0
    if arguments and arguments[0] in ("-d", "-f"):
        return _be_daemon(arguments)
    from .client import main as be_client

    return be_client(arguments)


def _be_daemon(arguments: list[str]) -> int:
    """Import the daemon's modules only here, because clients start hundreds of times."""
    from . import control, launch

    if launch.has_its_name():
        return control.main(foreground=arguments[0] == "-f")
    if arguments[0] == "-d":
        return launch.start_in_background(arguments)
    launch.become_daemon_process(arguments)
    raise AssertionError("exec returned")
