"""Validation of objects by the schemas of their kinds."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

SCHEMAS = Path(__file__).with_name("schemas")


def _schemas() -> Mapping[str, Draft202012Validator]:
    files = [json.loads(file.read_text()) for file in sorted(SCHEMAS.glob("*.json"))]
    return {
        kind: Draft202012Validator({**schema, "$defs": file["$defs"]})
        for file in files
        for kind, schema in file["kinds"].items()
    }


VALIDATORS = _schemas()


def schema_errors(found: Mapping[str, Any]) -> list[str]:
    """Return the errors of an object, and where they are."""
    errors = VALIDATORS[found["kind"]].iter_errors(found)
    return [f"{error.json_path}: {error.message}" for error in errors]
