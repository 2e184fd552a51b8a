"""What a Makefile or a CMakeLists.txt builds, read without running make or CMake, and for which GPUs.

As much of make's language is known as names of programs need: variables, explicit and pattern rules. What make computes
in a shell or in another make is not known, and what depends on it is left out.
"""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from orchestrator.workspace.findings import MAIN, MAX_READ, MAX_SOURCES, Program, arguments, files_below, read_text

MAKEFILES = ("GNUmakefile", "makefile", "Makefile")
_INCLUDE = re.compile(r"^-?include[ \t]+([\w./-]+)\s*$", re.MULTILINE)
_SET = re.compile(r"^[ \t]*(?:override\s+|export\s+)*([\w.-]+)\s*(\?|::?|\+)?=\s*(.*)$")
_CONDITION = re.compile(r"^[ \t]*(?:(ifn?eq|ifn?def)|endif)\b")
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
_LINKED = re.compile(r"\.(?:cu|hip|c|cc|cpp|cxx|o|a)$")
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
    """The text of ``makefile`` and of what it includes by a plain path, without comments."""
    pending, found = [makefile], dict[Path, str]()
    while pending and len(found) < MAX_SOURCES:
        path = pending.pop()
        if path not in found:
            found[path] = uncommented(read_text(path))
            pending.extend(makefile.parent / name for name in _INCLUDE.findall(found[path]))
    return found


def uncommented(text: str) -> str:
    """A Makefile's ``text`` without comments."""
    return re.sub(r"(?:^|(?<=\s))#[^\n]*", "", text)


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


def peers(makefile: Path, goal: str, targets: Iterable[str]) -> Iterator[str]:
    """Those of ``targets`` that link a program as ``goal`` does, where no target stands for all."""
    parsed = _Parsed(makefile.parent, "\n".join(texts(makefile).values()))
    linked = set(parsed.linked(goal))
    for target in targets if linked else ():
        if not linked.issuperset(own := set(parsed.linked(target))):
            linked |= own
            yield target


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
                self._set(found[1], how, found[3].strip())
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

    def linked(self, name: str) -> Iterator[str]:
        """The files that the commands for ``name`` write from sources or objects that they name."""
        for command in self.made(name)[1]:
            output = _OUTPUT.search(command)
            if output and any(map(_LINKED.search, command.split())) and not _NO_PROGRAM.search(command):
                yield output[1]

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
                if need == name or not any(self.linked(need)):  # not the sources of another program
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


#: A program with its sources; programs of computed names or sources, or not beside their CMakeLists.txt.
_EXECUTABLE = re.compile(
    r"^[ \t]*(?:cuda_)?add_executable\s*\(\s*([\w.+-]+)(?!\s+(?:ALIAS|IMPORTED|EXCLUDE_FROM_ALL)\b)(\s[^()]*)\)",
    re.MULTILINE | re.IGNORECASE,
)
_PROJECT = re.compile(r"^[ \t]*project\s*\(\s*([\w.+-]+)", re.MULTILINE | re.IGNORECASE)
_LIST = re.compile(r"^[ \t]*set\s*\(\s*(\w+)\s([^()]*)\)", re.MULTILINE | re.IGNORECASE)
_VARIABLE = re.compile(r"\$\{(\w+)\}")
_COMMENT = re.compile(r"#\[\[.*?(?:\]\]|\Z)|#[^\n]*", re.DOTALL)
_NOT_PLAIN = re.compile(
    r"(?:EXECUTABLE_OUTPUT_PATH|RUNTIME_OUTPUT_DIRECTORY)\b|add_executable\s*\([^()]*\$\{", re.IGNORECASE
)


def lists_below(folder: Path) -> dict[Path, str]:
    """The CMakeLists.txt with their texts, without comments."""
    return {
        path: _COMMENT.sub("", read_text(path)) for path in files_below(folder) if path.name == "CMakeLists.txt"
    }  # fmt: skip


def _set_once(text: str) -> dict[str, str]:
    found = _LIST.findall(text)
    counts = Counter(name for name, _ in found)
    return {name: value for name, value in found if counts[name] == 1}


def _resolved(text: str, variables: Mapping[str, str]) -> str:
    """``text`` with its variables' values; as it is, if they would make it longer by more than is read of a file."""
    if sum(len(variables.get(name, "")) for name in _VARIABLE.findall(text)) > MAX_READ:
        return text
    return _VARIABLE.sub(lambda name: variables.get(name[1], name[0]), text)


def programs(folder: Path) -> list[Program]:
    """What the lists of ``folder`` build, relative to it; nothing if they compute a name or sources, or put programs
    elsewhere."""
    lists = lists_below(folder)
    project = "".join(_PROJECT.findall(lists.get(folder / "CMakeLists.txt", ""))[:1])
    known = {"PROJECT_NAME": project, "PROJECT_SOURCE_DIR": str(folder), "CMAKE_SOURCE_DIR": str(folder)}
    found = []
    for path, text in lists.items():
        known["CMAKE_CURRENT_SOURCE_DIR"] = str(path.parent)
        plain = _resolved(text, known)
        known |= _set_once(plain)
        plain = _resolved(plain, known)
        if _NOT_PLAIN.search(plain):
            return []
        for name, rest in _EXECUTABLE.findall(plain):
            command = shlex.quote(Path("build", path.parent.relative_to(folder), name).as_posix())
            sources = [read_text(path.parent / source.strip('"')) for source in rest.split()[:MAX_SOURCES]]
            if plain != text and not any(map(MAIN.search, sources)):
                return []
            found.append(Program(command, arguments(sources)))
    return found


#: ``sm_86``, ``compute_75``; not ``sm_90a``, whose kernels run nowhere else, nor a file ``sm_80.cu``.
_LITERAL = re.compile(r"\b(?:sm|compute)_\d+\b(?![.-])")
#: CMake's ``set(CMAKE_CUDA_ARCHITECTURES 70)``, ``CUDA_ARCHITECTURES "75;86-real"``.
_CMAKE_LIST = re.compile(r"CUDA_ARCHITECTURES\W{1,2}(?:\d+|native)\b")
#: The GPU of the machine that compiles, which may have none.
_NATIVE = re.compile(r"-arch(?:itecture)?[= ]native\b")
#: A toolkit of one version. The target's own replaces it where there is no such.
_TOOLKIT = re.compile(r"/usr/local/cuda-\d+(?:\.\d+)?")
_ONE_GPU_ALONE = re.compile(r"\b(?:sm|compute)_\d+[af]\b|CUDA_ARCHITECTURES[^)\n]{0,200}\d[af]\b")
_FILE_NAME = re.compile(r"\b(?:sm|compute)_\d+[.-]\w")
#: Make's variables that are numbers of GPUs: ``sm_$(SM)``, ``compute_$(subst .,,${COMPUTE})``; and loops over them.
_MAKE_VARIABLE = re.compile(r"\b(?:sm|compute)_\$[({](?:subst [^$()]*\$[({])?(\w+)[)}]")
_LOOP = re.compile(r"\$[({]foreach\s+(\w+)\s*,\s*\$[({](\w+)[)}]")
#: CMake's ``CUDA_ARCHITECTURES ${GPUCC}``, and the variables that may be given: not set, or in the cache.
_CMAKE_VARIABLE = re.compile(r'CUDA_ARCHITECTURES["\s]+\$\{(?!CMAKE_)(\w+)\}')

_SETTABLE = r"NOT\s+\(?\s*(?:DEFINED\s+)?%(name)s\b|set\s*\(\s*%(name)s\b[^()]{0,500}\bCACHE\b"
#: What rewrites the patterns above.
_IN_PATHS = '$([ -e %(toolkit)s ] || echo "s#%(toolkit)s#${CUDA_HOME:-/usr/local/cuda}#g")'
_IN_FLAGS = r"s/\b(sm|compute)_[0-9]+\b/\1_$FCCTL_CUDA_ARCH/g"
_IN_NATIVE = r"s/(-arch(itecture)?[= ])native\b/\1sm_$FCCTL_CUDA_ARCH/g"
_IN_LISTS = r"s/(CUDA_ARCHITECTURES\W{1,2})([0-9]+|native)(-[a-z]+)?([; ]+[0-9]+(-[a-z]+)?)*/\1$FCCTL_CUDA_ARCH/g"


def rewritten(texts: Mapping[Path, str]) -> dict[Path, str]:
    """The files that name GPUs by number or a CUDA toolkit by version, and the options with which sed puts the target's
    in their place."""
    found = {}
    for path, text in texts.items():
        commands = [_IN_PATHS % {"toolkit": toolkit} for toolkit in dict.fromkeys(_TOOLKIT.findall(text))]
        if not _ONE_GPU_ALONE.search(text) and not _FILE_NAME.search(text):
            patterns = {_IN_FLAGS: _LITERAL, _IN_NATIVE: _NATIVE, _IN_LISTS: _CMAKE_LIST}
            commands += [command for command, pattern in patterns.items() if pattern.search(text)]
        if commands:
            found[path] = " ".join(f'-e "{command}"' for command in commands)
    return found


def commands(rewritten_files: Iterable[tuple[str, str]]) -> str:
    """A step's lines that put the target's GPU in the place of those that build files name: (path, sed's options)."""
    files: dict[str, list[str]] = {}
    for path, options in rewritten_files:
        files.setdefault(options, []).append(path)
    lines = [f"sed -i -E {options} {shlex.join(paths)}\n" for options, paths in files.items()]
    return (f"# {_WHY}\n" if lines else "") + "".join(lines)


_WHY = "in this run's copy of the source, the target's GPU and toolkit replace those that the build files name"


def make_variables(text: str) -> tuple[str, ...]:
    """The variables of Makefiles that hold the numbers of the GPUs."""
    loops = dict(_LOOP.findall(text))
    return tuple(dict.fromkeys(loops.get(name, name) for name in _MAKE_VARIABLE.findall(text)))


def cmake_variables(text: str) -> tuple[str, ...]:
    """The variables of CMake that the user may set to the GPU's number."""
    names = dict.fromkeys(_CMAKE_VARIABLE.findall(text))
    return tuple(name for name in names if re.search(_SETTABLE % {"name": name}, text))
