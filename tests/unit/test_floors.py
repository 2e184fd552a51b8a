"""The floors of the house, read from all imports: at module level, inside functions and for type checkers alike."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from types import MappingProxyType

import pytest

#: One worker reads the sources.
pytestmark = pytest.mark.group("sources")
ROOT = Path(__file__).resolve().parents[2]
SOURCES = {
    "orchestrator": ROOT / "orchestrator",
    "fcctl_remote": ROOT / "remote" / "fcctl_remote",
    "fcctl_tune": ROOT / "remote" / "fcctl_tune",
}

#: From the ground up: a package imports only what stands on a line before its own, and itself. Packages on one line
#: do not import each other.
FLOORS = """
    fcctl_remote.record
    fcctl_remote.wire
    fcctl_remote.base
    fcctl_remote.gates fcctl_remote.readers fcctl_remote.probe
    fcctl_remote.run
    fcctl_remote.agent
    fcctl_remote.__main__
    fcctl_remote.start
    fcctl_remote.archive_main
    fcctl_tune.errors
    fcctl_tune.search
    fcctl_tune.trial
    fcctl_tune.workers
    fcctl_tune.engine
    fcctl_tune.__main__
    orchestrator.base
    orchestrator.machines orchestrator.results
    orchestrator.money
    orchestrator.providers
    orchestrator.leases
    orchestrator.runs
    orchestrator.sessions
    orchestrator.schedules orchestrator.tune
    orchestrator.hosts
    orchestrator.workspace
    orchestrator.views
    orchestrator.emulator
    orchestrator.app
    orchestrator.cli
"""
#: A cloud of its own: it knows nothing of what drives clouds.
ONLY = {"orchestrator.emulator": ("orchestrator.emulator", "orchestrator.base", "fcctl_remote.base")}
#: Modules in one folder, ``__init__.py`` included.
MOST_MODULES = 22
#: Lines of a module whose docstring does not say why it is long.
MOST_LINES = 400
#: What of a search anyone may read, its libraries installed or not.
WITHOUT_LIBRARIES = """
    errors engine.pace search.records search.space search.spec
"""
LIBRARIES_OF_A_SEARCH = {"optuna", "numpy", "dask", "distributed", "tornado", "yaml"}
#: Modules that are only imported where their libraries are known to be.
NEED_LIBRARIES_AT_ONCE = ("fcctl_tune.search.storage",)
#: Loaded by every command, whatever it is: `fcctl --version` pays for each import at module level.
FRAME = ("context", "entry", "failures", "main")
SLOW = ("pydantic", "rich", "paramiko", "fabric", "yaml", "platformdirs", "sqlite3", "asyncio", "importlib.metadata")
#: Rules: decisions on data, with no file, process, socket, thread or signal.
PURE = """
    leases: session_rules
    machines: cloud power_history targets
    machines/provision: actions decide endpoint
    money: audit billable caps ledger reservations
    money/prices: machine rates table
    providers/gcp: list_prices refusals
    results: records timings tuning
    results/store: names
    results/compare: effect facts ranks rows verdicts
    runs: lifecycle
    runs/cost: machine_cost
    runs/job: job plan saved_plan
    schedules: due
    tune: adoption fleet_rules search_file
    workspace: config starter
"""
#: Who knows that a cloud is Google's, beside its package: the kind's configuration, the registry, the emulator's own
#: machine, old lines of the ledger, which name no kind, and the fcctl.toml that `fcctl init` writes.
KNOW_GOOGLE = {"machines.targets", "machines.sandbox", "providers.registry", "money.ledger", "workspace.init"}
OUTSIDE = ("subprocess", "socket", "sqlite3", "shutil", "tempfile", "pathlib", "threading", "signal")

Imports = Mapping[str, frozenset[str]]


def modules() -> Iterator[tuple[str, Path]]:
    for top, folder in SOURCES.items():
        for path in sorted(folder.rglob("*.py")):
            if "_data" not in path.parts:
                yield ".".join((top, *path.relative_to(folder).with_suffix("").parts)).removesuffix(".__init__"), path


def imports_of(text: str, *, top_level: bool = False) -> Iterator[str]:
    """What ``text`` imports; ``from a import b`` gives ``a.b``. ``top_level``: only what runs on import."""
    tree = ast.parse(text)
    for node in at_import(tree) if top_level else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute here"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def at_import(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        yield node
        yield from at_import(node)


@cache
def house() -> Imports:
    return MappingProxyType({name: frozenset(imports_of(path.read_text())) for name, path in modules()})


def module(name: str, text: str) -> dict[str, frozenset[str]]:
    """One more module."""
    return {name: frozenset(imports_of(text))}


def within(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(prefix + ".")


@cache
def floor_of(module: str) -> tuple[int, str]:
    """Floor and package of a module. A package's own ``__init__.py`` at the top stands below all its floors."""
    for number, line in enumerate(FLOORS.split("\n")):
        for package in line.split():
            if within(module, package):
                return number, package
    assert any(within(package, module) for package in FLOORS.split()), f"{module} has no line in FLOORS"
    return -1, module


def upward(imports: Imports) -> list[str]:
    """Each import of a package on the same floor or a higher one, or of one that the importer is denied."""
    wrong = []
    for module, names in sorted(imports.items()):
        if module == "orchestrator":  # the names for users: it loads what is behind one when that is called
            continue
        floor, package = floor_of(module)
        only = next((allowed for prefix, allowed in ONLY.items() if within(module, prefix)), None)
        for name in sorted(names):
            if name.split(".")[0] not in SOURCES:
                continue
            other_floor, other = floor_of(name)
            denied = only is not None and not any(within(name, prefix) for prefix in only)
            if other != package and (other_floor >= floor or denied):
                wrong.append(f"{module} imports {name}")
    return wrong


def circle(imports: Imports) -> set[str]:
    """Modules that import each other, directly or through others: those of one such group, if there is one."""
    edges = {
        module: {found for name in names if (found := module_named(name, imports)) and found != module}
        for module, names in imports.items()
    }
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return set(error.args[1])
    return set()


def module_named(name: str, imports: Imports) -> str | None:
    """The module that ``import a.b.c`` or ``from a.b import c`` reads: ``a.b.c`` if it is one, else ``a.b``."""
    place = name.rpartition(".")[0]
    return name if name in imports else place if place in imports else None


def crowded(places: Mapping[str, int]) -> list[str]:
    return [f"{folder} has {count} modules" for folder, count in places.items() if count > MOST_MODULES]


def places(names: Iterable[tuple[str, Path]]) -> Mapping[str, int]:
    return Counter(str(path.parent.relative_to(ROOT)) for _, path in names)


def test_imports_go_one_way() -> None:
    assert len(house()) > 250
    assert not upward(house())


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert not circle(house())


def test_no_folder_is_crowded() -> None:
    assert not crowded(places(modules()))


@pytest.mark.parametrize("how", ["import {}", "def late() -> None:\n    import {}", "if TYPE_CHECKING:\n    import {}"])
def test_a_planted_upward_import_is_seen(how: str) -> None:
    for package in FLOORS.split()[:-1]:
        above = next(p for line in FLOORS.split("\n") for p in line.split() if floor_of(p)[0] > floor_of(package)[0])
        assert upward(module(f"{package}.planted", how.format(f"{above}.anything"))) == [
            f"{package}.planted imports {above}.anything"
        ]


@pytest.mark.parametrize("line", [line for line in FLOORS.split("\n") if len(line.split()) > 1], ids=str.split)
def test_an_import_of_a_package_beside_is_seen(line: str) -> None:
    one, other, *_ = line.split()
    assert len(upward(module(f"{one}.planted", f"from {other} import anything"))) == 1


def test_an_import_that_the_emulator_is_denied_is_seen() -> None:
    assert upward(module("orchestrator.emulator.planted", "import orchestrator.money.caps"))


def test_a_planted_circle_is_seen_in_every_package() -> None:
    for name in {".".join(package.split(".")[:2]) for package in FLOORS.split()}:
        planted = module(f"{name}.one", f"from {name}.other import Name") | module(
            f"{name}.other", f"import {name}.one"
        )
        assert circle({**house(), **planted}) == set(planted)


def test_a_folder_with_a_module_too_many_is_seen() -> None:
    planted = [(f"m{number}", SOURCES["orchestrator"] / "planted/m.py") for number in range(MOST_MODULES + 1)]
    assert not crowded(places(planted[1:]))
    assert crowded(places(planted))


def test_a_long_module_says_why() -> None:
    texts = {name: path.read_text() for name, path in modules()}
    long = [name for name, text in texts.items() if len(text.splitlines()) > MOST_LINES]
    assert [name for name in long if "Long, " not in (ast.get_docstring(ast.parse(texts[name])) or "")] == []


def test_the_host_program_needs_only_the_standard_library() -> None:
    known = sys.stdlib_module_names | {"fcctl_remote"}
    used = {(module, name) for module, names in house().items() if within(module, "fcctl_remote") for name in names}
    assert len(used) > 100
    assert not [f"{module} imports {name}" for module, name in used if name.split(".")[0] not in known]


SEARCH = {name: path.read_text() for name, path in modules() if within(name, "fcctl_tune")}


def test_a_search_knows_nothing_of_the_controller() -> None:
    known = sys.stdlib_module_names | {"fcctl_remote", "fcctl_tune"}
    for name, text in SEARCH.items():
        found = {imported.split(".")[0] for imported in imports_of(text)}
        assert found <= known | LIBRARIES_OF_A_SEARCH, name
        if name not in NEED_LIBRARIES_AT_ONCE:
            assert {imported.split(".")[0] for imported in imports_of(text, top_level=True)} <= known, name
        if name.removeprefix("fcctl_tune.") in WITHOUT_LIBRARIES.split():
            assert found <= known, name


def test_what_needs_no_library_is_there() -> None:
    assert {f"fcctl_tune.{name}" for name in WITHOUT_LIBRARIES.split()} <= set(house())


@pytest.mark.parametrize("name", FRAME)
def test_the_frame_of_the_command_line_imports_nothing_slow(name: str) -> None:
    found = list(imports_of((SOURCES["orchestrator"] / "cli" / f"{name}.py").read_text(), top_level=True))
    assert not [module for module in found if any(within(module, slow) for slow in SLOW)]


PURE_MODULES = [
    f"orchestrator.{folder.strip().replace('/', '.')}.{name}"
    for folder, _, names in (line.partition(":") for line in PURE.strip().split("\n"))
    for name in names.split()
]


def test_rules_touch_no_outside_world() -> None:
    used = [(module, name) for module in PURE_MODULES for name in house()[module]]
    assert [f"{module} imports {name}" for module, name in used if any(within(name, out) for out in OUTSIDE)] == []


def test_nobody_else_asks_whether_a_target_is_google_s() -> None:
    pattern = re.compile(r"\bGcpTarget\b|[\"']gcp[\"']|orchestrator\.providers\.gcp\.(?!list_prices)")
    named = {name.removeprefix("orchestrator.") for name, path in modules() if within(name, "orchestrator")
             and not within(name, "orchestrator.providers.gcp") and pattern.search(path.read_text())}  # fmt: skip
    assert named == KNOW_GOOGLE
