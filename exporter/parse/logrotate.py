"""Configuration files of logrotate (logrotate(8))."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True, slots=True)
class LogrotateStanza:
    """The directives for the logs that some patterns match."""

    patterns: tuple[str, ...]
    directives: frozenset[str]

    def matches(self, path: str) -> bool:
        """Return whether the stanza is for this log. As in a shell, `*` matches no slash."""
        depth = path.count("/")
        return any(fnmatchcase(path, each) and each.count("/") == depth for each in self.patterns)

    @property
    def truncates(self) -> bool:
        """Whether logrotate truncates the log instead of renaming it."""
        return "copytruncate" in self.directives


def parse_logrotate(text: str) -> Iterator[LogrotateStanza]:
    """Yield the stanzas of a file."""
    for head, body in re.findall(r"([^{}]*)\{([^{}]*)\}", re.sub(r"^\s*#.*$", "", text, flags=re.MULTILINE)):
        patterns = (word.strip("\"'") for word in head.split())
        directives = (line.split()[0] for line in body.splitlines() if line.split())
        yield LogrotateStanza(tuple(each for each in patterns if each.startswith("/")), frozenset(directives))
