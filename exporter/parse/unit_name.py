"""Names of systemd services. A module of its own, so that the command line starts without the model."""

import re


def is_service_name(name: str) -> bool:
    """Return whether the text names one service, and is neither a pattern nor an option (systemd.unit(5))."""
    return re.fullmatch(r"(?!-)[A-Za-z0-9:_.\\@-]{1,247}\.service", name) is not None
