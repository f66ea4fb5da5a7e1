"""What a cluster would say to an object, by the schemas of its kind."""

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


def complaints(found: Mapping[str, Any]) -> list[str]:
    """What is wrong with an object, and where."""
    errors = VALIDATORS[found["kind"]].iter_errors(found)
    return [f"{error.json_path}: {error.message}" for error in errors]
