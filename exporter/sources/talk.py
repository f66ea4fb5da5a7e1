"""Talks to a child process: says something, and hears it out, within a time and a measure."""

import contextlib
import os
import selectors
import subprocess

from exporter.clock import Clock

MOST_BYTES = 1 << 20
"""A child that says more on one stream is not heard out."""


def talk(child: "subprocess.Popen[bytes]", words: bytes, deadline: float, clock: Clock) -> tuple[bytes, bytes] | None:
    """Say `words` to a child and hear what it says on stdout and stderr until it ends.

    None where it has not ended within `deadline` seconds, or does not stop talking; it is then the caller's to kill.
    `subprocess` itself would keep whatever comes, without bound.
    """
    if child.stdin is None or child.stdout is None or child.stderr is None:
        raise ValueError("a child without pipes cannot be talked to")
    ends = clock.monotonic() + deadline
    with contextlib.suppress(OSError):
        child.stdin.write(words)
        child.stdin.close()
    heard = {child.stdout: b"", child.stderr: b""}
    with selectors.DefaultSelector() as selector:
        for stream in heard:
            selector.register(stream, selectors.EVENT_READ, stream)
        while selector.get_map():
            ready = selector.select(ends - clock.monotonic()) if clock.monotonic() < ends else []
            if not ready:
                return None
            for key, _ in ready:
                said = os.read(key.fd, 1 << 16)
                heard[key.data] += said
                if not said:
                    selector.unregister(key.fileobj)
                if len(heard[key.data]) > MOST_BYTES:
                    return None
    try:
        child.wait(max(0.0, ends - clock.monotonic()))
    except subprocess.TimeoutExpired:
        return None
    return heard[child.stdout], heard[child.stderr]
