"""The JSON Schema of the status document, which has that of incidents: status.schema.json."""

import inspect
import json
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from exporter.report.document import StatusDocument

_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null"}


def status_schema() -> str:
    """Return status.schema.json."""
    definitions: dict[str, Any] = {}
    whole = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Status of a node by cuda-mps-exporter",
        "$comment": "Written by `python -m docs`. Incidents are of the type IncidentStatus.",
        **_type(StatusDocument, definitions),
        "$defs": definitions,
    }
    return json.dumps(whole, indent=1) + "\n"


def _type(hint: Any, definitions: dict[str, Any]) -> Mapping[str, Any]:
    if isinstance(hint, UnionType):
        return {"anyOf": [_type(each, definitions) for each in get_args(hint)]}
    if get_origin(hint) is tuple:
        return {"type": "array", "items": _type(get_args(hint)[0], definitions)}
    if get_origin(hint) is Mapping:
        return {"type": "object", "additionalProperties": _type(get_args(hint)[1], definitions)}
    if is_dataclass(hint):
        name = getattr(hint, "__name__", "")
        if name not in definitions:
            definitions[name] = {}
            definitions[name] |= _object(hint, definitions)
        return {"$ref": f"#/$defs/{name}"}
    if issubclass(hint, Enum):
        return {"enum": [each.value for each in hint]}
    return {"type": _TYPES[hint]}


def _object(kind: Any, definitions: dict[str, Any]) -> Mapping[str, Any]:
    """Return the type of a class. A field whose default is None is absent if it is None."""
    hints = get_type_hints(kind)
    return {
        "type": "object",
        "description": " ".join((inspect.getdoc(kind) or "").split()),
        "properties": {each.name: _type(hints[each.name], definitions) for each in fields(kind)},
        "required": [each.name for each in fields(kind) if each.default is MISSING],
    }
