"""Which file builds a Python project (build.py, setup.py, pyproject.toml), and which packages to install for it."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

from orchestrator.workspace.findings import read_text

#: Of a package; without it a project may have a list of what it needs alone, as uv makes one.
_PACKAGE, _PROJECT = (re.compile(rf"^\[{table}\]", re.MULTILINE) for table in ("build-system", "project"))
#: The optional dependencies of its tests.
_EXTRA = re.compile(
    r"^\[project\.optional-dependencies\][^\n]*\n(?:(?!\[)[^\n]*\n)*?(tests?|testing|dev)\s*=", re.MULTILINE
)
_EXTENSIONS = re.compile(r"ext_modules|Extension\(")
#: Of pyproject.toml, what may call nvcc.
_BACKENDS = re.compile(r"^requires\s*=[^\]]{0,2000}(?:scikit.build|meson|cmake|maturin|torch|cuda)", re.MULTILINE)


def python_build(folder: Path) -> str | None:
    """build.py; setup.py, or setup_cuda.py, that compiles extensions with torch, which pip's own environment for builds
    lacks; else what pip installs: pyproject.toml, unless it has settings of tools alone, or another setup.py."""
    if (folder / "build.py").is_file():
        return "build.py"
    setups = {path.name: read_text(path) for path in sorted(folder.glob("setup*.py")) if path.is_file()}
    torch = [name for name, text in setups.items() if _EXTENSIONS.search(text) and "torch" in text]
    if "setup.py" in setups:
        return "setup.py" if "setup.py" in torch else "pyproject.toml"
    text = read_text(folder / "pyproject.toml")
    modules = (path for pattern in ("*/__init__.py", "src/*/__init__.py") for path in folder.glob(pattern))
    is_package = _PACKAGE.search(text) or (_PROJECT.search(text) and next(modules, None))
    return "pyproject.toml" if is_package else next(iter(torch), None)


def pip_compiles(folder: Path) -> bool:
    """Whether what pip installs may call nvcc: a package without extensions may have kernels beside it."""
    setup, settings = (read_text(folder / name) for name in ("setup.py", "pyproject.toml"))
    return _EXTENSIONS.search(setup) is not None or _BACKENDS.search(settings) is not None


def extra_for_tests(folder: Path) -> str:
    """The name of the optional dependencies for tests; "" if there is none."""
    return "".join(_EXTRA.findall(read_text(folder / "pyproject.toml"))[:1])


def requirements(folder: Path) -> str:
    """pip's arguments for what scripts and tests need."""
    if (folder / "requirements.txt").is_file():
        return "-r requirements.txt"
    try:
        needs = tomllib.loads(read_text(folder / "pyproject.toml"))["project"]["dependencies"]
        return shlex.join(needs)
    except (tomllib.TOMLDecodeError, KeyError, TypeError):
        return ""
