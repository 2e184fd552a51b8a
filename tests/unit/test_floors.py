"""The floors of the house, read from the imports: who may know of whom."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONTROLLER = ROOT / "orchestrator"
HOST_PROGRAM = ROOT / "remote" / "fcctl_remote"

#: What each room may import of ours, by prefix. Every room may also import itself.
ALLOWED = {
    "errors": (),
    "domain": ("fcctl_remote", "fcctl_tune", "orchestrator.base.errors"),
    "ports": ("fcctl_remote", "orchestrator.domain", "orchestrator.base.errors"),
    "adapters": ("fcctl_remote", "fcctl_tune", "orchestrator.domain", "orchestrator.base.errors", "orchestrator.runs.services"),
    "workflows": ("fcctl_remote", "orchestrator.domain", "orchestrator.base.errors", "orchestrator.runs.services"),
    "reports": (
        "fcctl_remote", "orchestrator.domain", "orchestrator.base.errors", "orchestrator.runs.services", "orchestrator.workflows",
    ),
    "cli": (
        "fcctl_remote", "orchestrator.app", "orchestrator.domain", "orchestrator.emulator", "orchestrator.base.errors",
        "orchestrator.runs.services", "orchestrator.reports", "orchestrator.workflows",
    ),
    "app": ("fcctl_remote", "orchestrator"),
    # It shows what reports show; whatever spends or takes memory, it has a child process do.
    "web": (
        "fcctl_remote", "orchestrator.domain", "orchestrator.base.errors", "orchestrator.runs.services", "orchestrator.reports",
        "orchestrator.workflows",
    ),
    # A cloud of its own: nothing that drives clouds may reach into it, nor it into them.
    "emulator": ("orchestrator.base.errors",),
}  # fmt: skip
TOPS = ("orchestrator", "fcctl_remote", "fcctl_tune")
#: What of a search anyone may read, its libraries installed or not.
WHERE_NO_SEARCH_RUNS = (
    "__init__.py", "errors.py", "halving.py", "landscape.py", "records.py", "replay.py", "search.py", "space.py",
    "spec.py",
)  # fmt: skip
LIBRARIES_OF_A_SEARCH = {"optuna", "numpy", "dask", "distributed", "tornado", "yaml"}
#: Modules that are only imported where their libraries are known to be.
NEED_THEM_AT_ONCE = ("storage.py",)
#: Needed before there is a workspace, and so before app.py can wire anything.
BEFORE_THE_WORKSPACE = ("orchestrator.workspace.workspace", "orchestrator.base.log_file")
#: Loaded by every command, whatever it is: `fcctl --version` pays for each import at module level.
FRAME = ("commands", "context", "entry", "failures", "main", "options", "output")
SLOW = ("pydantic", "rich", "paramiko", "fabric", "yaml", "platformdirs", "sqlite3", "asyncio", "importlib.metadata")

OURS = [
    path for folder in (CONTROLLER, HOST_PROGRAM) for path in sorted(folder.rglob("*.py")) if "_data" not in path.parts
]


def imports(path: Path, *, top_level: bool = False) -> Iterator[str]:
    """Modules that ``path`` imports; ``from a import b`` gives ``a.b``. ``top_level``: only what runs on import."""
    tree = ast.parse(path.read_text())
    for node in at_import(tree) if top_level else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute here"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def at_import(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        yield node
        yield from at_import(node)


def within(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(prefix + ".")


def room_of(path: Path) -> str:
    return path.relative_to(CONTROLLER).parts[0].removesuffix(".py")


def test_the_floors_see_the_code() -> None:
    assert len(OURS) > 30
    rooms = {room_of(path) for path in OURS if path.is_relative_to(CONTROLLER)} - {"__init__"}
    assert rooms == set(ALLOWED), "a new room needs its line in ALLOWED"


@pytest.mark.parametrize("path", OURS, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_one_way(path: Path) -> None:
    if path.is_relative_to(HOST_PROGRAM) or path == CONTROLLER / "__init__.py":
        return
    room = room_of(path)
    allowed = (*ALLOWED[room], f"orchestrator.{room}")
    if room == "cli":
        allowed += BEFORE_THE_WORKSPACE
    ours = {name for name in imports(path) if any(within(name, top) for top in TOPS)}
    wrong = sorted(name for name in ours if not any(within(name, prefix) for prefix in allowed))
    assert not wrong, f"{path.relative_to(ROOT)} ({room}) imports {', '.join(wrong)}"


@pytest.mark.parametrize("path", sorted(HOST_PROGRAM.rglob("*.py")), ids=lambda path: path.name)
def test_the_host_program_needs_only_the_standard_library(path: Path) -> None:
    known = sys.stdlib_module_names | {"fcctl_remote"}
    wrong = sorted({name for name in imports(path) if name.split(".")[0] not in known})
    assert not wrong, f"{path.name} imports {', '.join(wrong)}"


@pytest.mark.parametrize("path", sorted((ROOT / "remote" / "fcctl_tune").glob("*.py")), ids=lambda path: path.name)
def test_a_search_knows_nothing_of_the_controller(path: Path) -> None:
    known = sys.stdlib_module_names | {"fcctl_remote", "fcctl_tune"}
    assert {name.split(".")[0] for name in imports(path)} <= known | LIBRARIES_OF_A_SEARCH
    if path.name not in NEED_THEM_AT_ONCE:
        assert {name.split(".")[0] for name in imports(path, top_level=True)} <= known
    if path.name in WHERE_NO_SEARCH_RUNS:
        assert {name.split(".")[0] for name in imports(path)} <= known


@pytest.mark.parametrize("name", FRAME)
def test_the_frame_of_the_command_line_imports_nothing_slow(name: str) -> None:
    found = list(imports(CONTROLLER / "cli" / f"{name}.py", top_level=True))
    assert not [module for module in found if any(within(module, slow) for slow in SLOW)]


@pytest.mark.parametrize("path", sorted((CONTROLLER / "domain").glob("*.py")), ids=lambda path: path.stem)
def test_the_domain_touches_no_outside_world(path: Path) -> None:
    outside = ("subprocess", "socket", "sqlite3", "shutil", "tempfile", "pathlib", "threading", "signal")
    wrong = [name for name in imports(path) if any(within(name, module) for module in outside)]
    assert not wrong
