"""What a systemd service may be called."""

import re

_SERVICE = re.compile(r"(?!-)[A-Za-z0-9:_.\\@-]{1,247}\.service")


def is_service(name: str) -> bool:
    """Whether this names one service, and is neither a pattern nor an option (systemd.unit(5))."""
    return _SERVICE.fullmatch(name) is not None
