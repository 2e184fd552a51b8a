"""The tests of what a change touches: ``python -m tests.changed [COMMIT]``, or ``make test-changed``.

A test module belongs to a changed file if it imports it, itself or through others, or if its folder has that file's
subject (:data:`SUBJECTS`), since a test that types ``fcctl`` imports nothing of what it tests. The nearest come first,
and as many as fit :data:`BUDGET_S`, by what each took when it last ran here.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests import durations

ROOT = Path(__file__).resolve().parents[1]
#: Processor seconds: two workers need half of it, and as much again to start.
BUDGET_S = 70.0
WORKERS = 2
#: Of a test module that has not run here yet, seconds.
UNKNOWN_S = {"unit": 1.0, "integration": 10.0}
#: What is not said in imports: the folders whose commands these tests type.
SUBJECTS = {
    "browser": "orchestrator/views/dashboard orchestrator/views/report",
    "e2e": "orchestrator/cli jobs tools",
    "integration/cli": "orchestrator/cli orchestrator/workspace orchestrator/__init__.py orchestrator/app.py",
    "integration/emulator": "orchestrator/emulator",
    "integration/faults": "orchestrator/machines/provision orchestrator/emulator",
    "integration/flashcore": "kernels/flashcore",
    "integration/gcp_run": "orchestrator/leases orchestrator/sessions orchestrator/runs/machine orchestrator/runs/cost",
    "integration/host_program": "remote/fcctl_remote",
    "integration/hosts": "orchestrator/hosts",
    "integration/machines": "orchestrator/machines",
    "integration/money": "orchestrator/money orchestrator/runs/cost",
    "integration/providers": "orchestrator/providers",
    "integration/results": "orchestrator/results",
    "integration/runs": "orchestrator/runs",
    "integration/schedules": "orchestrator/schedules",
    "integration/second_provider": "orchestrator/providers",
    "integration/tune": "orchestrator/tune remote/fcctl_tune tune",
    "integration/views": "orchestrator/views",
    "mac_like": "tools",
    "power_cut": "orchestrator/base orchestrator/results/store orchestrator/money orchestrator/schedules "
    "orchestrator/leases remote/fcctl_remote remote/fcctl_tune/search",
    "simulation": "orchestrator/runs orchestrator/machines/provision orchestrator/money orchestrator/sessions",
    "unit/base": "orchestrator/base",
    "unit/cli": "orchestrator/cli",
    "unit/docs": "docs README.md Makefile tools .ci AGENTS.md CONTRIBUTING.md CHANGELOG.md",
    "unit/flashcore": "kernels jobs",
    "unit/hosts": "orchestrator/hosts",
    "unit/leases": "orchestrator/leases",
    "unit/machines": "orchestrator/machines",
    "unit/money": "orchestrator/money",
    "unit/providers": "orchestrator/providers",
    "unit/remote": "remote/fcctl_remote",
    "unit/results": "orchestrator/results",
    "unit/runs": "orchestrator/runs",
    "unit/schedules": "orchestrator/schedules",
    "unit/tune": "orchestrator/tune remote/fcctl_tune",
    "unit/views": "orchestrator/views",
    "unit/workspace": "orchestrator/workspace fcctl.toml",
}
#: Cheap, and about the tree as a whole.
ALWAYS = ("tests/unit/test_floors.py", "tests/unit/test_mentions.py")
#: How far a test is from what only its folder's subject ties it to; one import is 1.
SUBJECT_DISTANCE = 3
#: Beyond, nearly all tests reach all modules.
FARTHEST = 4


@dataclass(frozen=True)
class Choice:
    """Test modules, the nearest first; ``left_out`` are those for which there was no time."""

    chosen: tuple[str, ...]
    left_out: tuple[str, ...]
    seconds: float


# ------------------------------------------------------------------------------------------------ what imports what
@cache
def sources() -> Mapping[str, Path]:
    """Every Python module of the repository, tests too, by its dotted name."""
    found: dict[str, Path] = {}
    for top, base in (("orchestrator", ROOT), ("tests", ROOT), ("fcctl_remote", ROOT / "remote"),
                      ("fcctl_tune", ROOT / "remote"), ("flashcore", ROOT / "kernels")):  # fmt: skip
        for path in (base / top).rglob("*.py"):
            parts = path.relative_to(base).with_suffix("").parts
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


#: A statement of one line, or of several between parentheses. Python's own parser takes ten times as long.
IMPORT = re.compile(r"^[ \t]*(?:from ([\w.]+) import (?:\(([^)]*)\)|([^\n#]*))|import ([^\n#]*))", re.MULTILINE)


def imports(path: Path) -> Iterator[str]:
    for module, many, one, plain in IMPORT.findall(path.read_text()):
        listed = re.sub("#.*", "", many or one or plain).split(",")
        names = (name.split()[0] for name in listed if name.strip())
        yield from (f"{module}.{name}" if module else name for name in names)


@cache
def importers() -> Mapping[str, set[str]]:
    """Module -> the modules that import it."""
    modules = sources()
    found: dict[str, set[str]] = {name: set() for name in modules}
    for name, path in modules.items():
        for imported in imports(path):
            target = imported if imported in modules else imported.rpartition(".")[0]
            if target in found and target != name:
                found[target].add(name)
    return found


def is_test(path: Path) -> bool:
    return path.name.startswith("test_") and path.is_relative_to(ROOT / "tests")


# ------------------------------------------------------------------------------------------------------ what to run
def distances(changed: Iterable[str]) -> dict[str, int]:
    """Test module -> how far it is from the nearest of the changed files (paths from the repository's root)."""
    modules = sources()
    importing, names = importers(), {str(path.relative_to(ROOT)): name for name, path in modules.items()}
    found: dict[str, int] = {}
    for path in changed:
        front, seen = {names[path]} if path in names else set(), set()
        for distance in range(FARTHEST + 1):
            for name in front:
                if is_test(modules[name]):
                    test = str(modules[name].relative_to(ROOT))
                    found[test] = min(distance, found.get(test, distance))
            seen |= front
            front = {importer for name in front for importer in importing[name]} - seen
        for folder, distance in folders_of(path):
            for place in folder.rglob("test_*.py"):
                test = str(place.relative_to(ROOT))
                found[test] = min(distance, found.get(test, distance))
    return found


def folders_of(path: str) -> Iterator[tuple[Path, int]]:
    """The test folders that the file's subject, or a ``conftest.py`` in them, ties to it, and how far they are."""
    if path.endswith("conftest.py"):
        yield (ROOT / path).parent, 1
    for folder, subject in SUBJECTS.items():
        if any(path == place or path.startswith(f"{place}/") for place in subject.split()):
            yield ROOT / "tests" / folder, SUBJECT_DISTANCE


def choose(far: Mapping[str, int], seconds: Mapping[str, float], budget_s: float = BUDGET_S) -> Choice:
    """The nearest first, of those equally near the quickest; one too long for what is left makes way for the next."""
    chosen: list[str] = [test for test in ALWAYS if (ROOT / test).is_file()]
    left_out: list[str] = []
    spent = sum(cost(test, seconds) for test in chosen)
    for test in sorted(set(far) - set(chosen), key=lambda test: (far[test], cost(test, seconds), test)):
        needed = cost(test, seconds)
        if far[test] == 0 or spent + needed <= budget_s:  # a test that was itself changed always runs
            chosen.append(test)
            spent += needed
        else:
            left_out.append(test)
    return Choice(tuple(chosen), tuple(left_out), spent)


def cost(test: str, seconds: Mapping[str, float]) -> float:
    return seconds.get(test, UNKNOWN_S.get(Path(test).parts[1], 1.0))


# ------------------------------------------------------------------------------------------------------ the command
def changed_files(since: str | None) -> list[str]:
    """What differs from ``since``, or from the last commit, or, if nothing does, what that commit changed."""
    if since is not None:
        return [*_git("diff", "--name-only", since), *_git("ls-files", "--others", "--exclude-standard")]
    return changed_files("HEAD") or _git("diff", "--name-only", "HEAD~1")


def _git(*argv: str) -> list[str]:
    done = subprocess.run(["git", *argv], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"error: git {' '.join(argv)}: {done.stderr.strip()}; hint: make test-changed COMMIT=main")
    return done.stdout.splitlines()


def main(argv: Sequence[str]) -> int:
    changed = changed_files(argv[0] if argv else None)
    choice = choose(distances(changed), durations.of_modules())
    print(f"{len(changed)} changed files, {len(choice.chosen)} test modules, about {choice.seconds:.0f} s of processor")
    if choice.left_out:
        print(f"not run, for want of time: {' '.join(choice.left_out)}", "make test runs them", sep="\n")
    workers = ["--workers", str(WORKERS)] if choice.seconds > 15 else []
    pytest = [sys.executable, "-m", "pytest", "-q", "-m", "not full", *workers, *choice.chosen]
    return subprocess.run(pytest, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
