"""Validation of objects by the schemas of their kinds."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

SCHEMAS = Path(__file__).with_name("schemas")

NEWEST, *OLDER = ("kubernetes-1.37.json", "kubernetes-1.36.json", "kubernetes-1.35.json")
"""The files of the older versions contain only what differs from the newest."""


def _file(name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads((SCHEMAS / name).read_text())
    return found


def _older(name: str) -> Mapping[str, Any]:
    return {part: newest | _file(name)[part] for part, newest in _file(NEWEST).items()}


def _validators() -> Mapping[str, Sequence[tuple[str, Draft202012Validator]]]:
    whole = {file.name for file in SCHEMAS.glob("*.json")} - {*OLDER}
    files = {name: _file(name) for name in sorted(whole)} | {name: _older(name) for name in OLDER}
    return {
        kind: [
            (name, Draft202012Validator({**file["kinds"][kind], "$defs": file["$defs"]}))
            for name, file in files.items()
            if kind in file["kinds"]
        ]
        for kind in {kind for file in files.values() for kind in file["kinds"]}
    }


VALIDATORS = _validators()
"""By kind, the validators of each version, with its file."""


def schema_errors(found: Mapping[str, Any]) -> list[str]:
    """Return the errors of an object, and where they are, in each version that has the kind."""
    return [
        f"{file}: {error.json_path}: {error.message}"
        for file, validator in VALIDATORS[found["kind"]]
        for error in validator.iter_errors(found)
    ]
