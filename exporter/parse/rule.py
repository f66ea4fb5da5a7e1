"""A rule: what a whole message of the log looks like, and what it then says."""

import re
from collections.abc import Callable

from exporter.parse.log_message import Message, Noise

Rule = tuple[re.Pattern[str], Callable[[tuple[str, ...]], Message]]

CLIENT = r"\{(?:PID: )?(-?\d{1,10}), (?:Context(?: ID)?: )?(-?\d{1,10})\}"
"""A client's context: `{PID: 508, Context ID: 1}`, up to R565 `{508, 1}`."""

NUMBER = r"(\d{1,10})"
UUID = r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"


def rule(pattern: str, build: Callable[..., Message]) -> Rule:
    """A rule whose groups are all whole numbers."""
    return re.compile(pattern, re.IGNORECASE), lambda groups: build(*map(int, groups))


def text_rule(pattern: str, build: Callable[..., Message]) -> Rule:
    """A rule whose groups are taken as they are."""
    return re.compile(pattern, re.IGNORECASE), lambda groups: build(*groups)


def noise(*patterns: str) -> Rule:
    """One rule for many messages that are known and say nothing that is needed."""
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns), re.IGNORECASE), lambda _groups: Noise()
