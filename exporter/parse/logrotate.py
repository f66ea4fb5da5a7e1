"""A file of logrotate's configuration (logrotate(8)): which logs, and how."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

_COMMENT = re.compile(r"^\s*#.*$", re.MULTILINE)
_STANZA = re.compile(r"([^{}]*)\{([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class Stanza:
    """What holds for some logs, by patterns."""

    patterns: tuple[str, ...]
    directives: frozenset[str]

    def fits(self, path: str) -> bool:
        """Whether it is for this log. As in a shell, `*` stands for no slash."""
        depth = path.count("/")
        return any(fnmatchcase(path, each) and each.count("/") == depth for each in self.patterns)

    @property
    def truncates(self) -> bool:
        """Whether the log stays the file that it is."""
        return "copytruncate" in self.directives


def stanzas(text: str) -> Iterator[Stanza]:
    """Those of a file."""
    for head, body in _STANZA.findall(_COMMENT.sub("", text)):
        patterns = (word.strip("\"'") for word in head.split())
        directives = (line.split()[0] for line in body.splitlines() if line.split())
        yield Stanza(tuple(each for each in patterns if each.startswith("/")), frozenset(directives))
