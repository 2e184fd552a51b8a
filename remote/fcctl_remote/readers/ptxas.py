"""Reader ``ptxas``: resources per kernel and architecture from a log of ``nvcc -Xptxas=-v``.

The log may hold anything else besides (make's lines, warnings, several compilations). CUDA 11 to 13 are read::

    ptxas info    : Compiling entry function 'F' for 'sm_89'
    ptxas info    : Function properties for F
        0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
    ptxas info    : Used 43 registers, used 1 barriers, 768 bytes smem, 380 bytes cmem[0]

A function that is not inlined has properties of its own but no registers; its spills count in ``totals``. What a log
does not say stays null, so that a gate on it cannot pass: registers of a kernel whose compilation broke off, or of
kernels whose lines two compilers printed at the same time. Dynamic shared memory is unknown to the compiler.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fcctl_remote.base.hostfacts import runs_on
from fcctl_remote.base.programs import run, which
from fcctl_remote.base.text import kernel_name
from fcctl_remote.readers.source import MAX_ROWS, ReaderError, clean, lines

_COMPILING = re.compile(r"ptxas info\s*:\s*Compiling entry function '([^']{1,4096})' for '(sm_[0-9]{2,3}[a-z]?)'")
_PROPERTIES = re.compile(r"(?:ptxas info\s*:\s*)?Function properties for '?([^\s']{1,4096})'?\s*$")
_FRAME = re.compile(r"(\d{1,12}) bytes stack frame, (\d{1,12}) bytes spill stores, (\d{1,12}) bytes spill loads")
_USED = re.compile(r"ptxas info\s*:\s*Used (\d{1,6}) registers(.*)$")
_LINKED = re.compile(r"nvlink info\s*:\s*Function properties for '([^']{1,4096})'")
_LINK_USED = re.compile(r"nvlink info\s*:\s*used (\d{1,6}) registers(.*)$")
_ITEM = re.compile(r"(?:used )?(\d{1,12})(?:\+(\d{1,12}))?\s+(barriers|bytes [a-z ]+|stack)")
_PROBLEM = re.compile(r"(?:ptxas|nvlink) (warning|error|fatal)\s*:\s*(.*)$")
_HINT = (
    "compile to machine code with nvcc -Xptxas=-v and keep its stderr: 2>&1 | tee build.log; if all files are up to "
    "date, use make -B; without nvcc, remove this reader"
)
MAX_PROBLEMS = 100


def read(path: str, env: Mapping[str, str]) -> dict[str, Any]:
    log = _Log()
    for line in lines(path):
        log.line(line)
        if len(log.kernels) + len(log.functions) > MAX_ROWS:
            raise ReaderError("more than %d kernels" % MAX_ROWS)
    log.close()
    if not log.kernels:
        if log.problems["error"]:
            raise ReaderError("ptxas failed: %s" % log.problems["error"][0], "see the log of the build")
        raise ReaderError("contains no resource line of ptxas", _HINT, empty=True)
    kernels, functions = _distinct(log.kernels), _distinct(log.functions)
    names = readable([k["mangled"] for k in kernels + functions], env)
    for kernel in kernels + functions:
        kernel["name"] = clean(names.get(kernel["mangled"], kernel["mangled"]))
        kernel["mangled"] = clean(kernel["mangled"])
    archs = sorted({k["arch"] for k in kernels if k["arch"]})
    wanted = env.get("FCCTL_CUDA_ARCH", "")
    return {
        "kind": "build",
        "tool": "ptxas",
        "archs": archs,
        **({"no_code_for": "sm_" + wanted} if wanted and not any(runs_on(arch, wanted) for arch in archs) else {}),
        "complete": not log.broken,
        "kernels": kernels,
        "functions": functions,
        "totals": _totals(kernels, functions),
        "warnings": log.problems["warning"],
        "errors": log.problems["error"],
    }


def _kernel(name: str, arch: str | None) -> dict[str, Any]:
    unknown = ("registers", "stack_bytes", "spill_store_bytes", "spill_load_bytes", "smem_bytes", "barriers")
    entry: dict[str, Any] = {"name": name, "mangled": name, "arch": arch}
    entry.update(dict.fromkeys(unknown))
    return entry


class _Log:
    """What was read so far: ``open`` holds the kernels whose register line is still to come."""

    def __init__(self) -> None:
        self.kernels: list[dict[str, Any]] = []
        self.functions: list[dict[str, Any]] = []
        self.open: list[dict[str, Any]] = []
        self.tangled = False  # two compilers printed at the same time
        self.broken = False
        self.arch: str | None = None
        self.described: dict[str, Any] | None = None  # whose frame line comes next
        self.linked: str | None = None
        self.problems: dict[str, list[str]] = {"warning": [], "error": []}

    def line(self, line: str) -> None:
        if "bytes stack frame" in line:
            self.frame(line)
        elif "Function properties for" in line:
            self.properties(line)
        elif "info" in line:
            self.info(line)
        elif "ptxas" in line or "nvlink" in line:
            self.problem(line)

    def info(self, line: str) -> None:
        compiling = _COMPILING.search(line)
        if compiling:
            self.arch = compiling.group(2)
            kernel = _kernel(compiling.group(1), self.arch)
            self.kernels.append(kernel)
            self.open.append(kernel)
            self.tangled = self.tangled or len(self.open) > 1
            return
        used = _USED.search(line)
        if used:
            self.used(used.group(1), used.group(2))
            return
        link_used = _LINK_USED.search(line)
        if link_used and self.linked:
            self.link_used(self.linked, link_used.group(1), link_used.group(2))
            self.linked = None

    def used(self, registers: str, rest: str) -> None:
        if not self.open:
            self.broken = True  # the beginning is cut off: nobody knows whose registers these are
            return
        kernel = self.open.pop()
        if self.tangled:
            self.broken = True
            self.tangled = bool(self.open)
            return
        _resources(kernel, registers, rest)

    def link_used(self, name: str, registers: str, rest: str) -> None:
        """Resources after linking relocatable code; they complete the compiler's where there is only one arch."""
        same = [k for k in self.kernels if k["mangled"] == name]
        if len(same) > 1:
            return
        kernel = same[0] if same else _kernel(name, None)
        if not same:
            kernel.update(spill_store_bytes=None, spill_load_bytes=None)
            self.kernels.append(kernel)
        _resources(kernel, registers, rest)

    def properties(self, line: str) -> None:
        linked = _LINKED.search(line)
        if linked:
            self.linked = linked.group(1)
            return
        named = _PROPERTIES.search(line)
        if named is None:
            return
        name = named.group(1)
        for kernel in reversed(self.open):
            if kernel["mangled"] == name:
                self.described = kernel
                return
        self.described = _kernel(name, self.arch)
        self.functions.append(self.described)

    def frame(self, line: str) -> None:
        numbers = _FRAME.search(line)
        if numbers and self.described is not None:
            stack, stores, loads = (int(n) for n in numbers.groups())
            self.described.update(stack_bytes=stack, spill_store_bytes=stores, spill_load_bytes=loads)
        self.described = None

    def problem(self, line: str) -> None:
        match = _PROBLEM.search(line)
        if match:
            distinct = self.problems["warning" if match.group(1) == "warning" else "error"]
            if len(distinct) < MAX_PROBLEMS:
                distinct.append(clean(match.group(2), 300))

    def close(self) -> None:
        self.broken = self.broken or bool(self.open) or bool(self.problems["error"])


def _resources(kernel: dict[str, Any], registers: str, rest: str) -> None:
    """``Used N registers, used 1 barriers, 8 bytes cumulative stack size, 768 bytes smem, 16 bytes lmem, ..``."""
    kernel.update(registers=int(registers), smem_bytes=0)
    for first, second, what in _ITEM.findall(rest):
        amount = int(first) + int(second or 0)
        if what == "barriers":
            kernel["barriers"] = amount
        elif what == "bytes smem":
            kernel["smem_bytes"] = amount
        elif what == "bytes lmem":
            kernel["lmem_bytes"] = amount
        elif what == "bytes cumulative stack size":
            kernel["cumulative_stack_bytes"] = amount
        elif what == "stack" and kernel["stack_bytes"] is None:
            kernel["stack_bytes"] = amount


def _distinct(kernels: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each entry once: a header's kernel is compiled, and printed, in every file that includes it."""
    seen = set()
    distinct = []
    for kernel in kernels:
        key = tuple(sorted((k, str(v)) for k, v in kernel.items()))
        if key not in seen:
            seen.add(key)
            distinct.append(kernel)
    return distinct


def _totals(kernels: list[dict[str, Any]], functions: list[dict[str, Any]]) -> dict[str, Any]:
    """Worst figures over everything compiled; null as soon as one of them is unknown."""
    everything = kernels + functions

    def worst(entries: list[dict[str, Any]], *keys: str) -> int | None:
        values = [e.get(key, 0) for e in entries for key in keys]
        return None if any(v is None for v in values) else max(values, default=0)

    return {
        "kernels": len(kernels),
        "max_registers": worst(kernels, "registers"),
        "max_smem_bytes": worst(kernels, "smem_bytes"),
        "max_stack_bytes": worst(everything, "stack_bytes", "cumulative_stack_bytes"),
        "max_spill_store_bytes": worst(everything, "spill_store_bytes"),
        "max_spill_load_bytes": worst(everything, "spill_load_bytes"),
        "max_lmem_bytes": worst(everything, "lmem_bytes"),
    }


_DEMANGLERS = ("cu++filt", "c++filt", "llvm-cxxfilt")
_TIMEOUT_S = 5.0
MAX_NAMES = 5000


def readable(mangled: list[str], env: Mapping[str, str]) -> dict[str, str]:
    """Mangled -> readable name without return type and parameters: ``fc::attention_tile<32, 32, __half>``.

    A name that is not mangled, as of ``extern "C"`` kernels, is absent; all are, without a demangler.
    """
    names = sorted({m for m in mangled if re.match(r"_Z[A-Za-z0-9_.$]+\Z", m)})[:MAX_NAMES]
    if not names:
        return {}
    for program in filter(None, (which(name, env) for name in _DEMANGLERS)):
        plain = _run(program, names, env)
        if plain:
            return plain
    return {}


def _run(program: str, names: list[str], env: Mapping[str, str]) -> dict[str, str]:
    answers = run([program, "-p"], _TIMEOUT_S, env, stdin="\n".join(names) + "\n")
    lines = answers.out.splitlines()
    if not answers.ok or len(lines) != len(names):
        return {}
    return {name: kernel_name(line.strip()) or name for name, line in zip(names, lines)}  # noqa: B905
