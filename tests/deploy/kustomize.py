"""The part of `kubectl kustomize` that the manifests need. Debian's kubectl is too old for them.

What it makes was compared with kustomize 5.5's own, and differs only in the hash at the end of a ConfigMap's name.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

Object = dict[str, Any]

KNOWN = {
    "apiVersion", "kind", "namespace", "resources", "patches", "configMapGenerator", "generatorOptions",
}  # fmt: skip

MERGED_BY = {"containers": "name", "volumes": "name", "env": "name", "volumeMounts": "mountPath"}
"""Keys of the elements of lists that are merged. A patch replaces any other list as a whole."""


def built(folder: Path, *components: Path) -> Sequence[Object]:
    """Return all objects of a folder with a kustomization.yaml, with these components."""
    options = _kustomization(folder)
    objects = [each for name in options.get("resources", ()) for each in _resources(folder / name)]
    objects += [_config_map(folder, each, options) for each in options.get("configMapGenerator", ())]
    for each in (*components, folder):
        for patch in _kustomization(each).get("patches", ()):
            objects = _patched(objects, yaml.safe_load((each / patch["path"]).read_text()))
    return [_in_namespace(each, options.get("namespace")) for each in objects]


def _kustomization(folder: Path) -> Mapping[str, Any]:
    options: Mapping[str, Any] = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert options.keys() <= KNOWN
    return options


def _resources(path: Path) -> Iterator[Object]:
    yield from built(path) if path.is_dir() else yaml.safe_load_all(path.read_text())


def _config_map(folder: Path, options: Mapping[str, Any], kustomization: Mapping[str, Any]) -> Object:
    metadata = {"name": options["name"]}
    labels = kustomization.get("generatorOptions", {}).get("labels")
    data = {name: (folder / name).read_text() for name in options["files"]}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata | ({"labels": labels} if labels else {}),
        "data": data,
    }


def _patched(objects: Sequence[Object], patch: Object) -> list[Object]:
    wanted = patch["kind"], patch["metadata"]["name"]
    assert wanted in {(each["kind"], each["metadata"]["name"]) for each in objects}
    return [_merged(each, patch) if (each["kind"], each["metadata"]["name"]) == wanted else each for each in objects]


def _merged(known: Mapping[str, Any], patch: Mapping[str, Any]) -> Object:
    merged = dict(known)
    for key, value in patch.items():
        if isinstance(value, Mapping):
            merged[key] = _merged(known.get(key, {}), value)
        elif key in MERGED_BY:
            merged[key] = _merged_lists(known.get(key, ()), value, MERGED_BY[key])
        else:
            merged[key] = value
    return merged


def _merged_lists(known: Sequence[Object], patch: Sequence[Object], key: str) -> list[Object]:
    changed = {each[key]: each for each in patch}
    there = {each[key] for each in known}
    added = [each for each in patch if each[key] not in there]
    return [*added, *(_merged(each, changed.get(each[key], {})) for each in known)]


def _in_namespace(each: Object, namespace: str | None) -> Object:
    if namespace is None or each["kind"] == "Namespace":
        return each
    return each | {"metadata": each["metadata"] | {"namespace": namespace}}
