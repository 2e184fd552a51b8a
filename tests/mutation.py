"""Mutation testing: ``make mutants N=200 SEED=0``, or ``python -m tests.mutation --sample 200 --seed 0``.

Cosmic Ray makes the mutants: one operator, number, keyword, loop or exception is changed in one place. A sample of
them, drawn by seed and spread over the subjects, is planted one after another in a copy of the repository, and the
tests nearest to that file (:func:`tests_of`) run there. A mutant that no test notices is printed: a test is missing, or
the change means nothing. What means nothing by its kind is not planted: :mod:`tests.mutants_left_out`.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from queue import Queue

import pytest

from tests import durations
from tests.changed import ALWAYS, ROOT, distances
from tests.mutants_left_out import parts_of, says_nothing

#: Subject -> the files, as patterns from the repository's root.
SUBJECTS = {
    "money": ("orchestrator/money/*.py", "orchestrator/runs/cost/*.py"),
    "journal": ("orchestrator/base/journal.py", "orchestrator/base/files.py"),
    "schedules": ("orchestrator/schedules/*.py",),
    "collect": ("orchestrator/runs/transfer.py", "orchestrator/results/store/*.py"),
    "compare": ("orchestrator/results/compare/*.py",),
    "wire": ("remote/fcctl_remote/wire.py", "remote/fcctl_remote/base/files.py"),
    "gates": ("remote/fcctl_remote/gates/*.py",),
}
#: A decorator without which nothing can be imported proves nothing.
MEANINGLESS = ("core/RemoveDecorator",)
#: Seconds of tests for one mutant, as far as they are known, and when a mutant counts as one that hangs.
BUDGET_S, LIMIT_S = 90.0, 300.0
#: The most of them for one module; and what counts as quick.
SHARE_S, QUICK_S = 30.0, 2.0
#: So many of the nearest run before the others are looked for: they notice most mutants.
FIRST = 12
#: As `make test` has it.
WORKERS = 6
#: The part of the tests whose duration must be known, and what the others are taken to take.
KNOWN, UNKNOWN_S = 0.9, 1.0


@dataclass(frozen=True)
class Mutant:
    subject: str
    path: str
    line: int
    column: int
    operator: str
    occurrence: int

    @property
    def site(self) -> tuple[int, int, str]:
        """Where it is, and of which kind: a ``+`` may become ten other operators, which is one question."""
        return self.line, self.column, self.operator.partition("_")[0]


@dataclass(frozen=True)
class Verdict:
    mutant: Mutant
    #: ``killed``, ``survived``, or ``hung``, which is killed too.
    outcome: str
    #: The test that noticed it.
    by: str
    seconds: float
    diff: str


# --------------------------------------------------------------------------------------------------------- the mutants
def mutants(subject: str, path: Path) -> Iterator[Mutant]:
    """All mutants of one file, but those of :mod:`tests.mutants_left_out`."""
    from cosmic_ray import plugins
    from cosmic_ray.ast import ast_nodes, get_ast_from_path

    left_out, tree = parts_of(path.read_text(encoding="utf-8")), get_ast_from_path(path)
    for name in plugins.operator_names():
        operator_class = plugins.get_operator(name)
        if name in MEANINGLESS or operator_class.arguments():
            continue
        operator = operator_class()
        places = (place for node in ast_nodes(tree) for place in operator.mutation_positions(node))
        for occurrence, ((line, column), _end) in enumerate(places):
            kind = name.removeprefix("core/")
            if not says_nothing(kind, (line, column), left_out):
                yield Mutant(subject, str(path.relative_to(ROOT)), line, column, kind, occurrence)


def planted(mutant: Mutant, text: str) -> str | None:
    """The text of its file with the mutant; None if that is no Python: a signature's lone ``*`` is no operator."""
    from cosmic_ray import plugins
    from cosmic_ray.mutating import mutate_code

    try:
        after = mutate_code(text, plugins.get_operator(f"core/{mutant.operator}")(), mutant.occurrence)
        compile(after or "(", mutant.path, "exec")
    except (SyntaxError, AttributeError):  # the latter is Cosmic Ray's, at some nodes
        return None
    return str(after)


def sample(count: int, seed: int) -> list[Mutant]:
    """As many of each subject, drawn file by file, so that a long table of numbers does not crowd out the rest."""
    draw, found = random.Random(seed), []
    for number, (subject, patterns) in enumerate(SUBJECTS.items()):
        files = [path for pattern in patterns for path in sorted(ROOT.glob(pattern)) if path.name != "__init__.py"]
        of_file = {path: all_ for path in files if (all_ := _one_of_each_site(draw, mutants(subject, path)))}
        share = count // len(SUBJECTS) + (number < count % len(SUBJECTS))
        while share and of_file:
            path = draw.choice(list(of_file))
            mutant = of_file[path].pop()
            if planted(mutant, path.read_text(encoding="utf-8")) is not None:
                found.append(mutant)
                share -= 1
            if not of_file[path]:
                del of_file[path]
    return found


def _one_of_each_site(draw: random.Random, all_: Iterator[Mutant]) -> list[Mutant]:
    sites: dict[tuple[int, int, str], list[Mutant]] = {}
    for mutant in all_:
        sites.setdefault(mutant.site, []).append(mutant)
    chosen = [draw.choice(of_site) for of_site in sites.values()]
    draw.shuffle(chosen)
    return chosen


# ---------------------------------------------------------------------------------------------------------- the trials
def trial(mutant: Mutant, copy: Path, tests: Sequence[str]) -> Verdict:
    place = copy / mutant.path
    before = place.read_text(encoding="utf-8")
    after = planted(mutant, before)
    assert after is not None
    began = time.monotonic()
    place.write_text(after, encoding="utf-8")
    outcome, by = "survived", ""
    try:
        for part in filter(None, (tests[:FIRST], tests[FIRST:])):
            outcome, by = _run(copy, part)
            if outcome != "survived":
                break
    finally:
        place.write_text(before, encoding="utf-8")
    diff = list(difflib.unified_diff(before.split("\n"), after.split("\n"), lineterm="", n=0))[3:]
    return Verdict(mutant, outcome, by, round(time.monotonic() - began, 1), "\n".join(diff))


def _run(copy: Path, tests: Sequence[str]) -> tuple[str, str]:
    argv = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not full", "-p", "no:cacheprovider", *tests]
    with tempfile.TemporaryFile("w+") as output:
        try:
            # A mutant of the same size and second would find the bytecode of the one before.
            env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
            done = subprocess.run(argv, cwd=copy, env=env, stdout=output, stderr=output, check=False, timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            return "hung", ""
        output.seek(0)
        failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", output.read(), re.MULTILINE)
    noticed = done.returncode not in (0, pytest.ExitCode.NO_TESTS_COLLECTED)
    return ("killed", failed[1] if failed else "") if noticed else ("survived", "")


def not_of_themselves(verdicts: Sequence[Verdict], copy: Path) -> list[str]:
    """The tests that noticed mutants and fail without any, too: their verdicts are worth nothing."""
    tests = sorted({verdict.by for verdict in verdicts if "::" in verdict.by})
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(argv, cwd=copy, capture_output=True, text=True, check=False) if tests else None
    return re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", done.stdout, re.MULTILINE) if done else []


def copied(folder: Path) -> Path:
    """The repository as Git sees it, with what is new, in ``folder``: one commit, since some tests ask Git."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    author = ("-c", "user.name=mutants", "-c", "user.email=mutants@localhost")
    for words in (("init", "-q"), ("add", "-A"), (*author, "commit", "-q", "-m", "a copy")):
        subprocess.run(["git", *words], cwd=folder, capture_output=True, check=True)
    return folder


def read(file: Path) -> list[Verdict]:
    """What ``--out`` wrote. The code must still be the one that was mutated."""
    verdicts = [json.loads(line) for line in file.read_text().splitlines()]
    return [Verdict(**{**verdict, "mutant": Mutant(**verdict["mutant"])}) for verdict in verdicts]


def tests_of(path: str) -> list[str]:
    """What runs for a mutant in ``path``: the nearest modules first, then quick ones, then as many as fit the budget.
    Without those that only read the tree."""
    far = {test: distance for test, distance in distances([path]).items() if test not in ALWAYS}
    return chosen(far, seconds_of_tests())


def chosen(far: Mapping[str, int], tests: Mapping[str, float]) -> list[str]:
    """Of the modules ``far`` away, by what their ``tests`` took, seconds. One that is too long for its share of the
    budget is there with its quickest tests: most of the simulation's find what they find in a second."""
    of_module: dict[str, list[tuple[float, str]]] = {}
    for test, took in tests.items():
        of_module.setdefault(test.partition("::")[0], []).append((took, test))
    took_in_all = {module: sum(took for took, _ in of_it) for module, of_it in of_module.items() if module in far}

    def rank(module: str) -> tuple[int, int, float, str]:
        took = took_in_all[module]
        return 0 if far[module] <= 1 else 1 if took <= QUICK_S else 2, far[module], took, module

    found, left_s = [], BUDGET_S
    for module in sorted(took_in_all, key=rank):
        room_s = min(left_s, SHARE_S)
        if took_in_all[module] <= room_s:
            found.append(module)
            left_s -= took_in_all[module]
            continue
        for took, test in sorted(of_module[module]):
            room_s, left_s = room_s - took, left_s - took
            if room_s < 0:
                left_s += took
                break
            found.append(test)
    return found


@cache
def seconds_of_tests() -> dict[str, float]:
    """Test -> what it took when it last ran here, without those marked ``full``. If few have run here, all run once."""
    argv = [sys.executable, "-m", "pytest", "-q", "-m", "not full"]
    listed = subprocess.run([*argv, "--collect-only"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    tests = [line.partition("@")[0] for line in listed.splitlines() if "::" in line]
    if sum(test in durations.read() for test in tests) < KNOWN * len(tests):
        print("it is not known how long the tests take: they run once now", flush=True)
        subprocess.run([*argv, "--workers", str(WORKERS)], cwd=ROOT, check=False)
    known = durations.read()
    return {test: known.get(test, UNKNOWN_S) for test in tests}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sample", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--out", type=Path, help="each verdict as a line of JSON; what is in it already is not tried again"
    )
    parser.add_argument("--again", type=Path, help="only those that survived, of such a file")
    asked = parser.parse_args()
    chosen = (
        [v.mutant for v in read(asked.again) if v.outcome == "survived"]
        if asked.again
        else sample(asked.sample, asked.seed)
    )
    seconds_of_tests()
    verdicts = read(asked.out) if asked.out and asked.out.exists() else []
    chosen = [mutant for mutant in chosen if mutant not in {verdict.mutant for verdict in verdicts}]
    with tempfile.TemporaryDirectory(prefix="fcctl-mutants-") as folder, ThreadPoolExecutor(asked.workers) as pool:
        copies: Queue[Path] = Queue()
        for number in range(asked.workers):
            copies.put(copied(Path(folder) / str(number)))

        def one(mutant: Mutant) -> Verdict:
            copy = copies.get()
            try:
                return trial(mutant, copy, tests_of(mutant.path))
            finally:
                copies.put(copy)

        for verdict in pool.map(one, chosen):
            verdicts.append(verdict)
            print(
                f"{verdict.outcome:9}{verdict.seconds:6.1f} s  {verdict.mutant.path}:{verdict.mutant.line}", flush=True
            )
            if asked.out:
                with asked.out.open("a") as file:
                    file.write(json.dumps(asdict(verdict)) + "\n")
        wrong = not_of_themselves(verdicts, copies.get())
    _report(verdicts)
    for test in wrong:
        print(f"error: {test} fails without a mutant, too")
    return bool(wrong)


def _report(verdicts: Sequence[Verdict]) -> None:
    print("\n| subject | mutants | killed | survived |\n|---|---|---|---|")
    for subject in SUBJECTS:
        of = [v for v in verdicts if v.mutant.subject == subject]
        survived = sum(v.outcome == "survived" for v in of)
        print(f"| {subject} | {len(of)} | {len(of) - survived} | {survived} |")
    for verdict in verdicts:
        if verdict.outcome == "survived":
            print(f"\n{verdict.mutant.path}:{verdict.mutant.line} ({verdict.mutant.operator})\n{verdict.diff}")


if __name__ == "__main__":
    sys.exit(main())
