"""The logger of collectors, actions and stores.

structlog is imported at the first record. It imports asyncio, and takes a sixth of the CPU time of `status` if no
service runs.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

_configurations: list[Callable[[], None]] = []


def logger() -> Any:
    """Return structlog's logger, configured."""
    import structlog

    with contextlib.suppress(IndexError):
        _configurations.pop()()
    return structlog.get_logger()


@contextlib.contextmanager
def configured_at_first_record(configure: Callable[[], None]) -> Iterator[None]:
    """Configure structlog at the first record of the block. Nothing is configured without a record."""
    _configurations.append(configure)
    try:
        yield
    finally:
        _configurations.clear()
