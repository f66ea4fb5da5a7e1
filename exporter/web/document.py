"""A YAML file read by name, one section at a time: whatever is wrong in it is told by file, line and key.

All scalars are text, as they are where the format comes from: a user may be called `yes`.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from exporter.errors import ConfigError
from exporter.web.file import File

if TYPE_CHECKING:
    from yaml import MappingNode, ScalarNode, SequenceNode

    Node = ScalarNode | SequenceNode | MappingNode

_UNSET = ("", "~", "null")


class Section:
    """A mapping in the file. Each value must be of the kind that it is asked for as; ConfigError where it is not."""

    def __init__(self, file: Path, name: str, entries: Mapping[str, "Node"]) -> None:
        self._file = file
        self._name = name
        self._entries = entries

    @property
    def keys(self) -> Collection[str]:
        """What is written in it, even if no value is."""
        return self._entries.keys()

    def text(self, key: str) -> str | None:
        """A scalar; None if it is not there, or blank."""
        node = self._entries.get(key)
        if node is None:
            return None
        if node.id != "scalar":
            raise self.wrong(key, "must be one word or text")
        value = str(node.value)
        return value if value.strip() else None

    def texts(self, key: str) -> Sequence[str] | None:
        """A list of scalars; None if it is not there."""
        node = self._entries.get(key)
        if node is None:
            return None
        if node.id != "sequence" or any(each.id != "scalar" for each in node.value):
            raise self.wrong(key, "must be a list of texts")
        return [str(each.value) for each in node.value]

    def section(self, key: str) -> "Section":
        """A mapping; an empty one if it is not there."""
        return _section(self._file, self._path(key), self._entries.get(key))

    def place(self, key: str) -> str:
        """Where the value of a key stands."""
        node = self._entries.get(key)
        line = "" if node is None else f"line {node.start_mark.line + 1}: "
        return f"--web.config.file: {self._file}: {line}{self._path(key)}"

    def wrong(self, key: str, what: str) -> ConfigError:
        """What is wrong with the value of a key."""
        return ConfigError(f"{self.place(key)}: {what}")

    def _path(self, key: str) -> str:
        return f"{self._name}.{key}" if self._name else key


def read_document(file: File) -> Section:
    """The file's outermost mapping; ConfigError if it is no YAML, or PyYAML is not installed."""
    try:
        import yaml
    except ImportError as error:
        raise ConfigError("--web.config.file needs PyYAML: pip install 'cuda-mps-exporter[web]'") from error
    try:
        root = cast("Node | None", yaml.compose(file.content.decode(), Loader=yaml.BaseLoader))
    except yaml.MarkedYAMLError as error:
        # Without the lines themselves, which may hold a key.
        line = "" if error.problem_mark is None else f"line {error.problem_mark.line + 1}: "
        raise ConfigError(f"--web.config.file: {file.path}: {line}no YAML: {error.problem}") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(
            f"--web.config.file: {file.path}: no YAML that can be read: {type(error).__name__}"
        ) from error
    return _section(file.path, "", root)


def _section(file: Path, name: str, node: "Node | None") -> Section:
    if node is None or (node.id == "scalar" and node.value in _UNSET):
        return Section(file, name, {})
    where = f"--web.config.file: {file}: line {node.start_mark.line + 1}: " + (f"{name}: " if name else "")
    if node.id != "mapping":
        raise ConfigError(f"{where}must be a mapping, that is `key: value` lines")
    entries: dict[str, Node] = {}
    for key, value in node.value:
        if key.id != "scalar":
            raise ConfigError(f"{where}a key must be one word or text")
        if key.value in entries:
            raise ConfigError(f"{where}{key.value!r} is there twice; keep one of them")
        entries[key.value] = value
    return Section(file, name, entries)
