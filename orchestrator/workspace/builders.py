"""Other build programs (Meson, Bazel, just, Cargo, Julia, configure): their files, and the steps that a job gets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from orchestrator.workspace.findings import BuilderStep, read_text


class Builder(NamedTuple):
    tool: str
    files: tuple[str, ...]
    steps: tuple[BuilderStep, ...] = ()


_JULIA = "julia --project -e 'using Pkg; %s'"
#: just has recipes in place of steps.
BUILDERS = (
    Builder(
        "meson",
        ("meson.build",),
        (
            BuilderStep("build", "meson setup build --buildtype=release\nmeson compile -C build"),
            BuilderStep("test", "meson test -C build --print-errorlogs", "build/meson-logs/testlog.junit.xml"),
        ),
    ),
    Builder(
        "bazel",
        ("MODULE.bazel", "WORKSPACE", "WORKSPACE.bazel"),
        (BuilderStep("build", "bazel build //..."), BuilderStep("test", "bazel test --test_output=errors //...")),
    ),
    Builder("just", ("justfile", "Justfile", ".justfile")),
    Builder(
        "cargo",
        ("Cargo.toml",),
        (
            BuilderStep("build", "cargo build --release"),
            BuilderStep("test", "cargo test --release"),
            BuilderStep("bench", "cargo bench", needs="benches"),
        ),
    ),
    Builder(
        "julia",
        ("Project.toml",),
        (
            BuilderStep("build", _JULIA % "Pkg.instantiate()"),
            BuilderStep("test", _JULIA % "Pkg.test()", needs="test/runtests.jl"),
        ),
    ),
    Builder("make", ("configure",), (BuilderStep("build", "./configure\nmake -j4"),)),
)
_RECIPES = re.compile(r"^@?([A-Za-z_][\w-]*)(?![\w-])[^:\n]*:(?!=)", re.MULTILINE)


def builder_of(folder: Path) -> Builder | None:
    """The first of BUILDERS with a file in ``folder``, and of its steps those whose ``needs`` exist there."""
    found = next((b for b in BUILDERS if any((folder / name).is_file() for name in b.files)), None)
    return found and found._replace(
        steps=tuple(step for step in found.steps if not step.needs or (folder / step.needs).exists())
    )


def recipes(folder: Path, builder: Builder) -> tuple[str, ...]:
    """The recipes of a justfile."""
    name = next(name for name in builder.files if (folder / name).is_file())
    return tuple(_RECIPES.findall(read_text(folder / name))) if builder.tool == "just" else ()
