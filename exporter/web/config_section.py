"""Access to the YAML of the web config file by key. Each error names file, line and key.

All scalars are text, as in exporter-toolkit: a user can be called `yes`.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from exporter.errors import ConfigError

if TYPE_CHECKING:
    from yaml import MappingNode, ScalarNode, SequenceNode

    Node = ScalarNode | SequenceNode | MappingNode

MAX_FILE_BYTES = 1 << 20

FileVersion = tuple[int, int, int, int]
"""Inode, size, and the times of the last changes of content and inode."""

_Value = TypeVar("_Value")


def file_version(path: Path) -> FileVersion | None:
    """Return the current version of a file; None if it cannot be found."""
    try:
        return _version(path.stat())
    except OSError:
        return None


def _version(status: os.stat_result) -> FileVersion:
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


@dataclass(frozen=True, slots=True)
class ConfigFiles:
    """The web config file at `path`, and the versions of all files that were read for it."""

    path: Path
    versions: dict[Path, FileVersion] = field(default_factory=dict)

    def read(self, path: Path) -> bytes:
        """Read a file; OSError if it cannot be read or is larger than `MAX_FILE_BYTES`."""
        with path.open("rb") as stream:
            version = _version(os.fstat(stream.fileno()))
            content = stream.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise OSError(0, f"larger than {MAX_FILE_BYTES} bytes")
        self.versions[path] = version
        return content


class Section:
    """A mapping in the file. A value of another kind than requested raises ConfigError."""

    def __init__(self, files: ConfigFiles, name: str, node: "Node | None") -> None:
        self._files = files
        self._name = name
        self._entries: dict[str, Node] = {}
        if node is None or (node.id == "scalar" and node.value in ("", "~", "null")):
            return
        prefix = f"--web.config.file: {files.path}: line {node.start_mark.line + 1}: " + (f"{name}: " if name else "")
        if node.id != "mapping":
            raise ConfigError(f"{prefix}must be a mapping (`key: value` lines)")
        for key, value in node.value:
            if key.id != "scalar":
                raise ConfigError(f"{prefix}a key must be a single value")
            if key.value in self._entries:
                raise ConfigError(f"{prefix}duplicate key {key.value!r}; remove one of them")
            self._entries[key.value] = value

    @property
    def keys(self) -> Collection[str]:
        """All keys of the section, with or without a value."""
        return self._entries.keys()

    def refuse_others(self, supported: Collection[str]) -> None:
        """Raise an error for another key than these."""
        for key in self.keys:
            if key not in supported:
                raise self.error(key, f"not supported; remove it (supported: {', '.join(supported)})")

    def text(self, key: str) -> str | None:
        """Return a scalar; None if it is absent or blank."""
        node = self._entries.get(key)
        if node is None:
            return None
        if node.id != "scalar":
            raise self.error(key, "must be a single value")
        value = str(node.value)
        return value if value.strip() else None

    def texts(self, key: str) -> Sequence[str] | None:
        """Return a list of scalars; None if it is absent."""
        node = self._entries.get(key)
        if node is None:
            return None
        if node.id != "sequence" or any(each.id != "scalar" for each in node.value):
            raise self.error(key, "must be a list of values")
        return [str(each.value) for each in node.value]

    def choice(self, key: str, values: Mapping[str, _Value], default: str) -> _Value:
        """Return what a word stands for."""
        word = self.text(key) or default
        if word not in values:
            raise self.error(key, f"{word!r} is not supported; use {' or '.join(values)}")
        return values[word]

    def file(self, key: str) -> Path | None:
        """Return the path of a readable file; None if the key is absent."""
        named = self.text(key)
        if named is None:
            return None
        path = self._files.path.parent / named
        try:
            self._files.read(path)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise self.error(key, f"cannot read {path}: {reason}") from error
        return path

    def section(self, key: str) -> "Section":
        """Return a mapping; an empty one if it is absent."""
        return Section(self._files, self._path(key), self._entries.get(key))

    def error(self, key: str, problem: str) -> ConfigError:
        """Return an error that names the place of a key."""
        return ConfigError(f"{self._place(key)}: {problem}")

    def _place(self, key: str) -> str:
        node = self._entries.get(key)
        line = "" if node is None else f"line {node.start_mark.line + 1}: "
        return f"--web.config.file: {self._files.path}: {line}{self._path(key)}"

    def _path(self, key: str) -> str:
        return f"{self._name}.{key}" if self._name else key


def read_document(files: ConfigFiles) -> Section:
    """Read the outermost mapping; ConfigError if the file is not YAML or PyYAML is not installed."""
    prefix = f"--web.config.file: {files.path}: "
    try:
        content = files.read(files.path)
    except OSError as error:
        raise ConfigError(f"{prefix}cannot be read: {error.strerror}") from error
    try:
        import yaml
    except ImportError as error:
        raise ConfigError("--web.config.file needs PyYAML: pip install 'cuda-mps-exporter[web]'") from error
    try:
        root = cast("Node | None", yaml.compose(content.decode(), Loader=yaml.BaseLoader))
    except yaml.MarkedYAMLError as error:
        # The message omits the lines of the file, because they can contain a key.
        line = "" if error.problem_mark is None else f"line {error.problem_mark.line + 1}: "
        raise ConfigError(f"{prefix}{line}invalid YAML: {error.problem}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{prefix}not UTF-8 text, at byte {error.start}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{prefix}invalid YAML: {type(error).__name__}") from error
    return Section(files, "", root)
