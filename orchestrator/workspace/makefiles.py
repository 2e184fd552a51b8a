"""What a Makefile builds, read without running make: the programs behind a goal.

As much of make's language is known as names of programs need: variables, explicit and pattern rules. What make computes
in a shell or in another make is not known, and what depends on it is left out.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from orchestrator.workspace.programs import Program, arguments
from orchestrator.workspace.sources import MAX_SOURCES, read_text

MAKEFILES = ("GNUmakefile", "makefile", "Makefile")
_INCLUDE = re.compile(r"^-?include[ \t]+([\w./-]+)\s*$", re.MULTILINE)
_SET = re.compile(r"^\s*(?:override\s+|export\s+)*([\w.-]+)\s*(\?|::?|\+)?=\s*(.*)$")
_CONDITION = re.compile(r"^\s*(?:(ifn?eq|ifn?def)|endif)\b")
_RULE = re.compile(r"^([^\s#:=][^:=#]*?)\s*::?(?![:=])\s*([^#;]*)(?:;(.*))?")
_REFERENCE = re.compile(r"\$(?:\(([^()${}]*)\)|\{([^(){}$]*)\}|([@<^*?+\w]))")
_AUTOMATIC = re.compile(r"\(?([@<^*])[DF]?\)?")
_OUTPUT = re.compile(r"(?:^|\s)-o\s*(\S+)")
#: With ``-p``, or not at all, folders may be there before.
_MAKES_FOLDERS = re.compile(r"\bmkdir\s+(?!-p)")
#: Of a compiler that makes no program.
_NO_PROGRAM = re.compile(
    r"(?:^|\s)(?:-c|-dc|-S|-E|-shared|--shared|-ptx|--ptx|-cubin|-fatbin|-dlink|--lib|-lib)(?=\s|$)"
)
_SOURCE = re.compile(r"\.(?:cu|hip|c|cc|cpp|cxx)$")
_NO_ENDING = re.compile(r"\.(?!(?:out|bin|x|elf)$)[A-Za-z]\w*$")
_SPECIAL = re.compile(r"\.[A-Z]")
#: Stands for what only make knows.
_UNKNOWN = "\0"
_MAX_TEXT = 64 * 1024


@dataclass
class _Rule:
    targets: str
    needs: str
    recipe: list[str] = field(default_factory=list)


def texts(makefile: Path) -> dict[Path, str]:
    """The text of ``makefile`` and of what it includes by a plain path."""
    pending, found = [makefile], dict[Path, str]()
    while pending and len(found) < MAX_SOURCES:
        path = pending.pop()
        if path not in found:
            found[path] = read_text(path)
            pending.extend(makefile.parent / name for name in _INCLUDE.findall(found[path]))
    return found


@dataclass
class Built:
    """What make builds. Paths are relative to the folder of the Makefile."""

    programs: list[Program] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)  # that are written to, and that nobody makes


def built(makefile: Path, goal: str) -> Built:
    """What ``make GOAL`` builds."""
    text = "\n".join(texts(makefile).values())
    parsed = _Parsed(makefile.parent, text)
    found = Built()
    seen: set[str] = set()
    pending = [goal]
    while pending and len(seen) < 10 * MAX_SOURCES:
        name = pending.pop(0)
        if name not in seen:
            seen.add(name)
            needs, recipe = parsed.made(name)
            pending.extend(needs)
            for command in recipe:
                _add(found, parsed, name, command)
    if _MAKES_FOLDERS.search(text):
        found.folders = []
    return found


def _add(found: Built, parsed: _Parsed, name: str, command: str) -> None:
    output = _OUTPUT.search(command)
    path = os.path.normpath(output[1].strip("'\"")) if output else ""
    if not path or PurePosixPath(path).is_absolute() or not path.isprintable() or "$" in path:
        return
    folder = os.path.dirname(path)  # noqa: PTH120 - of make's text, not of a file
    if folder and not (parsed.folder / folder).exists() and folder not in found.folders:
        found.folders.append(folder)
    if not _NO_PROGRAM.search(command) and not _NO_ENDING.search(path):
        found.programs.append(parsed.program(name, path, command))


def default_goal(makefile: Path) -> str:
    """What make makes without an argument; "" if the Makefile does not say it plainly."""
    text = "\n".join(texts(makefile).values())
    named = re.search(r"^\.DEFAULT_GOAL\s*:?=\s*(\S+)", text, re.MULTILINE)
    parsed = _Parsed(makefile.parent, text)
    return named[1] if named else next(parsed.targets(), "")


class _Parsed:
    """Variables and rules of one Makefile."""

    def __init__(self, folder: Path, text: str) -> None:
        self.folder = folder
        rules: list[_Rule] = []
        self._variables: dict[str, str] = {}
        rule: _Rule | None = None
        depth = 0
        for line in re.sub(r"[ \t]{0,80}\\\r?\n[ \t]{0,80}", " ", text).splitlines():
            if line.startswith("\t"):
                if rule is not None:
                    rule.recipe.append(line.strip().lstrip("@-+"))
            elif found := _CONDITION.match(line):
                depth += 1 if found[1] else -1
            elif found := _SET.match(line):
                # Of branches, the first counts, and what is set before them.
                how = "?" if depth > 0 and found[2] != "+" else found[2]
                self._set(found[1], how, found[3].partition(" #")[0].strip())
            elif found := _RULE.match(line):
                rule = _Rule(found[1], found[2], [found[3].strip()] if found[3] else [])
                rules.append(rule)
        self._by_targets = [(rule, self.expand(rule.targets, {}).split()) for rule in rules]

    def _set(self, name: str, how: str | None, value: str) -> None:
        old = self._variables.get(name)
        if how == "+" and old is not None:
            value = f"{old} {value}"
        elif how == "?" and old is not None:
            return
        self._variables[name] = value[:_MAX_TEXT]

    def targets(self) -> Iterator[str]:
        """Those that have a name, in their order."""
        for _, targets in self._by_targets:
            yield from (
                name for name in targets if not _SPECIAL.match(name) and "%" not in name and _UNKNOWN not in name
            )

    def made(self, name: str) -> tuple[list[str], list[str]]:
        """What ``name`` is made of, and the commands that make it."""
        needs: list[str] = []
        recipe: list[str] = []
        for rule, targets in self._by_targets:
            stems = ((target, _stem(target, name)) for target in targets if "%" not in target or not recipe)
            for stem in (stem for target, stem in stems if stem is not None):
                found = [need.replace("%", stem) for need in self.expand(rule.needs, {}).split()]
                if stem and not all(self._is_made(need) for need in found):
                    continue
                needs += [need for need in found if need != "|" and _UNKNOWN not in need]
                automatic = {"@": name, "<": next(iter(found), ""), "^": " ".join(found), "*": stem}
                recipe += [self.expand(line, automatic) for line in rule.recipe if line]
        return needs, recipe

    def _is_made(self, name: str) -> bool:
        patterns = (target for _, targets in self._by_targets for target in targets if target != "%")
        return os.path.lexists(self.folder / name) or any(_stem(target, name) is not None for target in patterns)

    def program(self, name: str, path: str, command: str) -> Program:
        """The program that ``command`` writes to ``path`` for the target ``name``."""
        sources = dict.fromkeys(word for word in [*command.split(), *self._sources(name)] if _SOURCE.search(word))
        run = path if "/" in path else f"./{path}"
        return Program(shlex.quote(run), arguments(read_text(self.folder / source) for source in sources))

    def _sources(self, name: str) -> Iterator[str]:
        pending, seen = [name], set[str]()
        while pending and len(seen) < 10 * MAX_SOURCES:
            need = pending.pop()
            if need not in seen:
                seen.add(need)
                yield need
                pending.extend(self.made(need)[0])

    def expand(self, text: str, automatic: Mapping[str, str]) -> str:
        """``text`` with its variables; what is not known has ``_UNKNOWN`` in it."""
        text = text.replace("$$", _UNKNOWN)
        for _ in range(1000):
            found = _REFERENCE.search(text)
            if found is None or len(text) > _MAX_TEXT:
                return text
            value = self._value(found[1] or found[2] or found[3] or "", automatic)
            text = text[: found.start()] + value + text[found.end() :]
        return _UNKNOWN

    def _value(self, name: str, automatic: Mapping[str, str]) -> str:
        if (auto := _AUTOMATIC.fullmatch(name)) and auto[1] in automatic:
            value = automatic[auto[1]]
            return (
                PurePosixPath(value).name if name.endswith("F") else _folder_of(value) if name.endswith("D") else value
            )
        if ":" in name and "=" in name:
            variable, _, change = name.partition(":")
            old, _, new = change.partition("=")
            pattern, into = (old, new) if "%" in old else (f"%{old}", f"%{new}")
            return _substituted(pattern, into, self.expand(self._variables.get(variable, ""), automatic))
        function, space, rest = name.partition(" ")
        return self._call(function, rest.strip()) if space else self._variables.get(name, "")

    def _call(self, function: str, rest: str) -> str:
        first, _, others = rest.partition(",")
        calls = {
            "wildcard": lambda: " ".join(
                sorted(p.relative_to(self.folder).as_posix() for w in rest.split() for p in _glob(self.folder, w))
            ),
            "patsubst": lambda: _substituted(first, *(part.strip() for part in (*others.split(",", 1), "")[:2])),
            "addprefix": lambda: " ".join(first + word for word in others.split()),
            "addsuffix": lambda: " ".join(word + first for word in others.split()),
            "notdir": lambda: " ".join(PurePosixPath(word).name for word in rest.split()),
            "basename": lambda: " ".join(str(PurePosixPath(word).with_suffix("")) for word in rest.split()),
            "dir": lambda: " ".join(f"{_folder_of(word)}/" for word in rest.split()),
            "strip": lambda: " ".join(rest.split()),
            "sort": lambda: " ".join(sorted(set(rest.split()))),
        }  # fmt: skip
        return calls[function]() if function in calls else _UNKNOWN


def _folder_of(path: str) -> str:
    return str(PurePosixPath(path).parent)


def _glob(folder: Path, pattern: str) -> Iterator[Path]:
    if not pattern.startswith(("/", "~")) and ".." not in pattern and _UNKNOWN not in pattern:
        yield from list(folder.glob(pattern))[: 10 * MAX_SOURCES]


def _stem(pattern: str, name: str) -> str | None:
    """What ``%`` of ``pattern`` stands for in ``name``; "" if they are the same; None if they do not match."""
    start, percent, end = pattern.partition("%")
    if not percent:
        return "" if pattern == name else None
    matches = name.startswith(start) and name.endswith(end) and len(name) > len(start) + len(end)
    return name[len(start) : len(name) - len(end)] if matches else None


def _substituted(pattern: str, into: str, words: str) -> str:
    stems = ((word, _stem(pattern, word)) for word in words.split())
    return " ".join(word if stem is None else into.replace("%", stem) for word, stem in stems)
