"""Which modules import which, and which effects are in which files."""

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1] / "exporter"
MODULES = [path.relative_to(ROOT).as_posix() for path in sorted(ROOT.rglob("*.py"))]
LONGEST_MODULE = 500
TABLES = ("report/problems.py",)
"""Each is one table. It may be longer, because a part of it would be hard to find."""


@cache
def tree(module: str) -> ast.Module:
    return ast.parse((ROOT / module).read_text())


@cache
def nodes(module: str) -> tuple[ast.AST, ...]:
    """All that a module's text is made of."""
    return tuple(ast.walk(tree(module)))


@cache
def imports(module: str) -> tuple[str, ...]:
    """Everything that a module imports, by its whole name; nothing is relative."""
    return tuple(_imported(module))


def _imported(module: str) -> Iterator[str]:
    for each in nodes(module):
        if isinstance(each, ast.Import):
            yield from (name.name for name in each.names)
        if isinstance(each, ast.ImportFrom):
            assert each.level == 0
            yield from (f"{each.module}.{name.name}" for name in each.names)


def of_ours(module: str) -> set[str]:
    """What it imports of this package."""
    return {name.removeprefix("exporter.") for name in imports(module) if name.startswith("exporter.")}


def importers(package: str) -> set[str]:
    """The modules that import another package."""
    return {module for module in MODULES if any(f"{name}.".startswith(f"{package}.") for name in imports(module))}


PACKAGES: Mapping[str, str] = {
    "model": "",
    "parse": "model",
    "clock": "",
    "errors": "",
    "state": "model parse",
    "usage": "model parse state",
    "incidents": "model parse state usage",
    "watchdog": "incidents model parse state",
    "reducer": "incidents model state usage watchdog",
    "history": "model state usage",
    "view": "history model state usage watchdog",
    "recent": "history usage view",
    "metrics": "__version__ clock history model parse state usage view watchdog",
    "report": "model parse state usage view watchdog",
    "page": "__version__ history model parse recent report view",
    "store": "clock errors history logger model",
    "logger": "",
    "collectors": "clock logger model parse",
    "libcuda_probes": "clock collectors model parse",
    "actions": "clock collectors logger model parse",
    "config": "collectors errors model parse",
    "recording": "config errors model parse",
    "log": "clock config model parse report",
    "status_client": "errors model parse report",
    "terminal": "parse report",
    "web": "__version__ clock errors history metrics model page parse report status_client view",
    "loop": "actions clock collectors config history log model policy reducer state watchdog",
    "service": "actions clock collectors config history log loop metrics model parse recent report view web",
    "app": "actions clock collectors config incidents libcuda_probes logger model parse recording reducer report state"
    " usage",
    "doctor": "__version__ app clock collectors config errors libcuda_probes log logger model parse policy report"
    " state status_client terminal view web",
    "demo": "clock collectors config errors history log model policy recent recording reducer report service view"
    " watchdog web",
    "commands": "actions app clock collectors config demo errors history log logger loop metrics model parse policy"
    " recording reducer report service status_client store terminal view watchdog web",
    "cli": "__version__ commands config errors",
    "__main__": "cli",
    "policy": "config model reducer watchdog",
}
"""Each package and top module, with those that it may import."""


def package_of(module: str) -> str:
    return module.partition("/")[0].removesuffix(".py")


def test_a_package_imports_only_those_below_it() -> None:
    """Observations go up; a module does not know which modules read what it returns."""
    imported: dict[str, set[str]] = {package_of(module): set() for module in MODULES if module != "__init__.py"}
    for module in MODULES:
        package = package_of(module)
        imported.setdefault(package, set()).update(name.partition(".")[0] for name in of_ours(module))
    del imported["__init__"]
    assert {name: " ".join(sorted(used - {name})) for name, used in imported.items()} == PACKAGES


def test_packages_have_no_circle() -> None:
    TopologicalSorter({name: used.split() for name, used in PACKAGES.items()}).prepare()


def test_modules_have_no_circle() -> None:
    names = {module.removesuffix(".py").removesuffix("/__init__").replace("/", "."): module for module in MODULES}
    used = {
        name: {each if each in names else each.rpartition(".")[0] for each in of_ours(names[name])} for name in names
    }
    TopologicalSorter(used).prepare()


PURE = (
    *("model/", "parse/", "state/", "incidents/", "watchdog/", "usage/", "report/", "page/"),
    *("reducer.py", "policy.py", "history.py", "view.py"),
    *(f"doctor/{name}.py" for name in ("__init__", "facts", "gpus", "daemons", "processes")),
)
NOT_PURE = ("report/text.py",)
"""It shows local time."""
EFFECTS = {
    "os", "io", "sys", "time", "socket", "subprocess", "threading", "signal", "select", "pathlib", "shutil", "random",
    "datetime", "logging", "structlog", "psutil", "pynvml", "prometheus_client", "tenacity", "queue", "asyncio",
    "sqlite3",
}  # fmt: skip


def called(module: str) -> Iterator[str]:
    """The names of the functions that a module calls without a dot."""
    calls = (each.func for each in nodes(module) if isinstance(each, ast.Call))
    return (each.id for each in calls if isinstance(each, ast.Name))


def test_the_pure_core_has_no_effects() -> None:
    """No file, no clock, no chance: a recording replayed gives what the machine gave."""
    pure = [module for module in MODULES if module.startswith(PURE) and module not in NOT_PURE]
    imported = {(module, name.partition(".")[0]) for module in pure for name in imports(module)}
    assert {each for each in imported if each[1] in EFFECTS} == set()
    # Like `dataclass`, `frozen` compiles the function `__init__` of a class.
    assert {(m, name) for m in pure for name in called(m) if name in {"open", "print", "input", "exec", "eval"}} == {
        ("model/values.py", "exec")
    }


HOMES = {
    "pynvml": ("collectors/nvml/",),
    "subprocess": (
        "collectors/child.py", "collectors/control_client.py", "libcuda_probes/seccomp_check.py",
    ),
    "tenacity": ("collectors/control_client.py", "app.py"),
    "psutil": ("collectors/proc.py",),
    "pycxxfilt": ("libcuda_probes/demangle.py",),
    "prometheus_client": ("metrics/", "commands/replay.py", "service.py"),
    "http": ("web/", "collectors/pods.py"),
    "sqlite3": ("store/",),
    "jinja2": ("page/page.py",),
    "ssl": ("web/web_config.py", "collectors/pods.py"),
    "yaml": ("web/web_config.py",),
    "bcrypt": ("web/web_config.py",),
    "argparse": ("config/", "commands/", "demo/command.py", "doctor/command.py", "cli.py"),
    "exporter.cli": ("__main__.py",),
    "exporter.terminal": ("terminal.py", "commands/", "doctor/command.py"),
    "exporter.page": ("page/", "web/pages.py"),
    "exporter.actions": ("actions/", "app.py", "loop.py", "service.py", "commands/serve.py"),
}  # fmt: skip


def test_a_library_is_imported_only_where_it_is_permitted() -> None:
    strays = {
        (package, each) for package, homes in HOMES.items() for each in importers(package) if not each.startswith(homes)
    }
    assert strays == set()


CLOCK_READERS = {
    "actions/evidence.py": {"gmtime", "strftime"},
    "clock.py": {"time", "monotonic", "clock_gettime_ns", "CLOCK_BOOTTIME"},
    "report/text.py": {"gmtime", "localtime", "strftime", "struct_time"},
    "collectors/control_client.py": {"sleep"},
    "libcuda_probes/collector.py": {"sleep"},
}


def test_only_the_clock_reads_a_clock() -> None:
    """Others are given one; but a source may sleep, if it has no other way to wait."""
    used = {
        (module, each.attr)
        for module in MODULES
        for each in nodes(module)
        if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name) and each.value.id == "time"
    }
    assert {(module, name) for module, name in used if name not in CLOCK_READERS.get(module, set())} == set()
    assert {each for each in MODULES for name in imports(each) if name.startswith(("time.", "datetime"))} == set()


def test_the_default_sleep_is_never_called_directly() -> None:
    """It is a default argument, which a test replaces."""
    calls = [ast.unparse(each.func) for module in MODULES for each in nodes(module) if isinstance(each, ast.Call)]
    assert "time.sleep" not in calls


def test_only_the_command_line_prints() -> None:
    printing = {module for module in MODULES if "print" in called(module)}
    assert {each for each in printing if each != "cli.py" and not each.startswith("commands/")} == set()


def test_modules_are_short_and_have_docstrings() -> None:
    lengths = {module: len((ROOT / module).read_text().splitlines()) for module in MODULES}
    assert {module: lines for module, lines in lengths.items() if lines > LONGEST_MODULE and module not in TABLES} == {}
    assert [module for module in MODULES if not ast.get_docstring(tree(module))] == []


def test_metric_names_are_only_in_metrics() -> None:
    """The one catalogue."""
    constants = ((m, each.value) for m in MODULES for each in nodes(m) if isinstance(each, ast.Constant))
    names = {(m, value) for m, value in constants if isinstance(value, str) and value.startswith("cuda_mps_")}
    assert {(module, name) for module, name in names if not module.startswith("metrics/")} == set()


def test_every_module_that_a_rule_names_exists() -> None:
    named = [*PURE, *NOT_PURE, *CLOCK_READERS, *(home for homes in HOMES.values() for home in homes)]
    assert [name for name in named if not any(module.startswith(name) for module in MODULES)] == []
