"""The configuration file: found, read within bounds, and taken apart into options and daemons."""

import difflib
import stat
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exporter.config.option import Option
from exporter.config.options import OPTIONS
from exporter.config.values import shown
from exporter.errors import ConfigError

DEFAULT_FILE = Path("/etc/cuda-mps-exporter/config.toml")
FILE_VARIABLE = "CUDA_MPS_EXPORTER_CONFIG_FILE"
MOST_BYTES = 1 << 20

DAEMONS = "daemons"


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """What a file says: the options in it, and its daemons as they stand there. `path` is None where there is none."""

    path: Path | None = None
    values: Mapping[Option, object]
    daemons: tuple[Mapping[str, object], ...] = ()


def read_document(path: Path, *, optional: bool = False) -> Document:
    """Read a configuration file, that may be absent if it is optional; ConfigError for what cannot be used."""
    try:
        text = _text(path)
    except FileNotFoundError as error:
        if optional:
            return Document(values={})
        raise ConfigError(f"{path}: there is no such file") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is no UTF-8 text, at byte {error.start}") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    return parse_document(path, text)


def parse_document(path: Path, text: str) -> Document:
    """What a configuration file with this text says; ConfigError for what cannot be used."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: no TOML: {error}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: no TOML that can be read: a number too long, or brackets too deep") from error
    sections = {option.section for option in OPTIONS}
    values: dict[Option, object] = {}
    for section, content in tables.items():
        if section == DAEMONS:
            continue
        if section not in sections:
            raise ConfigError(f"{path}: {unknown(section, (*sections, DAEMONS), 'section')}")
        values |= _section(path, section, content)
    return Document(path=path, values=values, daemons=_daemons(path, tables.get(DAEMONS, [])))


def _section(path: Path, section: str, content: object) -> dict[Option, object]:
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: {section}: this is a section; write [{section}] and its keys below")
    options = {option.key_in_section: option for option in OPTIONS if option.section == section}
    values: dict[Option, object] = {}
    for key, raw in content.items():
        if key not in options:
            raise ConfigError(f"{path}: [{section}] {unknown(key, options, 'key')}{_belongs(key)}")
        values[options[key]] = options[key].kind.of_toml(f"{path}: {options[key].key}", raw)
    return values


def _belongs(key: str) -> str:
    sections = [option.section for option in OPTIONS if option.key_in_section == key]
    return f"; it belongs to [{sections[0]}]" if sections else ""


def _daemons(path: Path, raw: object) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(raw, list) or not all(isinstance(each, dict) for each in raw):
        raise ConfigError(f"{path}: {DAEMONS}: begin each daemon with a line [[{DAEMONS}]]")
    return tuple(raw)


def unknown(name: str, known: Iterable[str], what: str) -> str:
    """That a name is not known, and which one may have been meant."""
    near = difflib.get_close_matches(name[:100], known, n=1)
    return f"{shown(name)}: unknown {what}" + (f"; did you mean {near[0]}?" if near else "")


def _text(path: Path) -> str:
    """What the file says; a pipe could keep the program waiting, and a device has no end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise ConfigError(f"{path}: is no regular file")
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ConfigError(f"{path}: is larger than {MOST_BYTES} bytes")
    return content.decode()
