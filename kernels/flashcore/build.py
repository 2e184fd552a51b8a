"""Compile one variant into a shared library, once per content: an unchanged variant is found in the cache.

The cache (``$FLASHCORE_CACHE``, else ``~/.cache/flashcore``) is keyed by a hash of the source, the headers beside it,
the command line, the compiler's version and, for processor code, the processor. It may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashcore import apart, documents, readers, toolchain
from flashcore.apart import Code
from flashcore.errors import BuildFailed
from flashcore.registry import CSRC
from flashcore.variant import COMMON, Configuration, Variant

#: Leave out what no kernel here uses: half of what compilers do for a trial of flagship is to read, four times, what
#: nvcc includes before any source. With the guard of GCC's header of special functions set, <cmath> is without those of
#: C++17; without GNU's extensions, libc is without those of 128-bit floats. The machine code is the same to the byte.
LEAN = ("-D_GLIBCXX_BITS_SPECFUN_H", "-U_GNU_SOURCE")
HEADERS = ("*.h", "*.hpp", "*.cuh")
LIBRARY, LOG, RECORD = "kernel.so", "build.log", "build.json"


@dataclass(frozen=True)
class Built:
    variant: Variant
    configuration: Configuration
    library: Path
    log: Path  # the compiler's output, ptxas resource lines included
    document: dict[str, Any]  # kind ``build``
    label: str  # the variant as results and people name it: ``stage5``, ``stage5:NUM_PRODUCER_WARPS=2``
    code: Code | None = None  # its kernel, unless the library has it

    @property
    def cached(self) -> bool:
        return bool(self.document["cached"])

    @property
    def slug(self) -> str:
        """The label as part of a file's name."""
        return slug(self.label)


def slug(label: str) -> str:
    """A label as part of a file's name."""
    return label.replace(":", "-").replace("+", "-").replace("=", "")


def cache_folder() -> Path:
    base = os.environ.get("FLASHCORE_CACHE")
    if base:
        return Path(base)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flashcore"


def build(
    variant: Variant,
    overrides: Mapping[str, int] | None = None,
    *,
    debug: bool = False,
    archs: str | None = None,
    native: bool = True,
    label: str | None = None,
    libraries: Iterable[int] | None = None,
) -> Built:
    """Compile ``variant`` with ``overrides``, or take it from the cache.

    ``label`` is its name in results (default: by what ``overrides`` change). ``native``: first with what not every
    compiler takes, for faster code (a processor's own) or a faster build (``LEAN``). ``libraries``: of a variant that
    is several, those that there must be beside the first one (default: all).

    Raises:
        UsageError: illegal parameters.
        Unavailable: no compiler for this variant here.
        BuildFailed: the compiler refused; the cause is the start of what it said.
    """
    started = time.perf_counter()
    configuration = variant.configure(overrides)
    command = _command(variant, configuration, debug, toolchain.archs(archs), native)
    home = cache_folder() / f"{variant.name}-{_key(variant, command)}"
    several = range(len(variant.libraries)) if configuration == variant.configure() else ()
    wanted = [n for n in several if libraries is None or n == 0 or n in libraries]
    cached = (home / RECORD).exists()
    if not cached:
        settings = variant.common(configuration)
        common = _command(variant, settings, debug, toolchain.archs(archs), native) if settings else ()
        home = _compile(variant, configuration, command, home, debug, wanted, common)
        if home is None:  # an old compiler, an unusual processor, other headers
            return build(variant, overrides, debug=debug, archs=archs, native=False, label=label, libraries=libraries)
    elif not all((home / library_name(n)).exists() for n in wanted):
        cached = False
        _add(variant, command, home, wanted)
    record = json.loads((home / RECORD).read_text(encoding="utf-8"))
    if "kernels" not in record:  # read after the build, so that a missing reader is not remembered
        record.update(_resources(variant, home))
    code = apart.code_in(home, home / LOG)
    files = [*sorted(home.glob("kernel*.so")), *([code.file] if code else [])]
    record.update(cached=cached, duration_s=round(time.perf_counter() - started, 3), artifacts=[str(f) for f in files])
    named = label or variant.label(configuration)
    return Built(variant, configuration, home / LIBRARY, home / LOG, record, named, code)


def library_name(number: int) -> str:
    """The file of a library of a variant that is several, in the folder of the first."""
    return f"kernel-{number}.so" if number else LIBRARY


def save(built: Built, out: Path, suffix: str = "") -> Path:
    """Write the build document and the compiler's log into ``out``; ``suffix`` tells libraries of one label apart."""
    shutil.copyfile(built.log, out / f"build-{built.slug}{suffix}.log")
    return documents.write_json(out / f"build-{built.slug}{suffix}.json", {**built.document, "label": built.label})


def _command(
    variant: Variant, configuration: Configuration, debug: bool, archs: list[str], native: bool
) -> tuple[str, ...]:
    """The compile command without source and output, whose paths must not change the cache's key."""
    defines = tuple(f"-D{name}={value}" for name, value in sorted(configuration.items()))
    if variant.device == "cuda":
        code = tuple(f"-gencode=arch=compute_{a},code=sm_{a}" for a in archs)
        how = ("-G", "-g") if debug else ("-O3", "-lineinfo")
        host = ("-shared", "-std=c++17", *(LEAN if native else ()), "-Xcompiler=-fPIC,-fvisibility=hidden")
        return (toolchain.nvcc(), *host, *how, "-Xptxas=-v,-warn-spills,-warn-lmem-usage", *code, *defines)
    how = ("-O0", "-g") if debug else ("-O3", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math")
    tuned = ("-march=native",) if native else ()
    return (
        toolchain.cxx(),
        "-shared",
        "-fPIC",
        "-pthread",
        "-std=c++17",
        "-fvisibility=hidden",
        *how,
        *tuned,
        *defines,
    )


def _key(variant: Variant, command: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    folders = dict.fromkeys((variant.source.parent, CSRC))
    headers = sorted(h for folder in folders for pattern in HEADERS for h in folder.glob(pattern))
    for path in (variant.source, *headers):
        digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    digest.update("\0".join((*command, toolchain.version(command[0]))).encode())
    if variant.device == "cpu":
        digest.update(toolchain.processor().encode())
    return digest.hexdigest()[:20]


def _compile(
    variant: Variant,
    configuration: Configuration,
    command: tuple[str, ...],
    home: Path,
    debug: bool,
    libraries: Sequence[int],
    common: tuple[str, ...] = (),
) -> Path | None:
    """Build into a new folder and move it to ``home`` as a whole; None if it may be ``native`` that was refused.

    ``libraries``: of a variant that is several, which ones; else none. ``common``: the command of the part that other
    configurations have, too; its library is kept beside ``home``.
    """
    home.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=home.parent, prefix=".building-"))
    lean = set(LEAN).issubset(command)
    try:
        argv = [*command, *_source(variant)]
        started = time.perf_counter()
        if common:
            kept = home.parent / f"{variant.name}-common-{_key(variant, common)}.so"
            host = [*common, *_source(variant), f"-DPART={COMMON}"]
            output, failed = apart.build(argv, host, work / LIBRARY, kept, lean=lean)
        else:
            output, failed = _compilers(argv, work, variant, libraries)
        seconds = time.perf_counter() - started
        (work / LOG).write_text(output, encoding="utf-8")
        if failed:
            if ("-march=native" in command and "march" in output) or lean:
                return None
            raise _refused(variant, output, failed)
        for path in work.glob("*.o"):
            path.unlink()
        record = documents.document(
            "build",
            variant=variant.name,
            configuration=configuration,
            content=home.name,  # the same where source, headers, command and compiler are
            debug=debug,
            tool=toolchain.version(command[0]),
            command=" ".join(argv),  # one that gives the same, however many compilers were at work
            archs=[a.rsplit("code=", 1)[1] for a in command if "code=" in a],
            compile_s=round(seconds, 3),
        )
        documents.write_json(work / RECORD, record)
        try:
            work.rename(home)
        except OSError:  # another process built the same content first, or left a half-made folder behind
            if not (home / RECORD).exists():
                shutil.rmtree(home)
                work.rename(home)
        return home
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _source(variant: Variant) -> tuple[str, str]:
    return f"-I{CSRC}", str(variant.source)


def _add(variant: Variant, command: tuple[str, ...], home: Path, libraries: Sequence[int]) -> None:
    """Build those of ``libraries`` that are not in ``home`` yet. Of several processes that begin at once one does it.

    Raises:
        BuildFailed: the compiler refused.
    """
    with (home / "lock").open("w") as lock:
        with contextlib.suppress(OSError):  # a file system without locks: they may be compiled twice
            fcntl.flock(lock, fcntl.LOCK_EX)
        missing = [n for n in libraries if not (home / library_name(n)).exists()]
        with tempfile.TemporaryDirectory(dir=home.parent, prefix=".building-") as folder:
            output, failed = _compilers([*command, *_source(variant)], Path(folder), variant, missing)
            if failed:
                raise _refused(variant, output, failed)
            with (home / LOG).open("a", encoding="utf-8") as log:
                log.write(output)
            record = json.loads((home / RECORD).read_text(encoding="utf-8"))
            record.pop("kernels", None)  # to be read again
            documents.write_json(home / RECORD, record)
            for number in missing:
                (Path(folder) / library_name(number)).rename(home / library_name(number))


def _refused(variant: Variant, output: str, command: list[str]) -> BuildFailed:
    cause = _first_errors(output)
    return BuildFailed(f"{variant.name} did not compile", cause=cause, hint="command: " + " ".join(command))


def _compilers(argv: list[str], work: Path, variant: Variant, libraries: Sequence[int]) -> tuple[str, list[str]]:
    """Compile in ``work``: to ``LIBRARY``, or, of a variant that is several, to these ``libraries``, with as many
    translation units at once as there are processors; what was said, and the command that failed, if one did."""
    processors = toolchain.processors()
    several = sum("-gencode" in word for word in argv) > 1
    if not libraries:
        threads = [f"--threads={processors}"] if several else []  # nvcc: architectures at once
        made = toolchain.run([*argv, *threads, "-o", str(work / LIBRARY)])
        return made.stdout, made.args if made.returncode else []
    units = {n: variant.units(n, -(-processors // len(libraries))) for n in libraries}
    objects = {(n, part): str(work / f"library{n}-part{part}.o") for n in libraries for part in units[n]}
    threads = [f"--threads={max(1, processors // len(objects))}"] if several else []
    unit = [*(word for word in argv if word != "-shared"), *threads]
    codes = [word for word in argv if word.startswith("-gencode")]
    link = [argv[0], "-shared", "-nodlink", *codes]  # no unit calls another's device code
    from concurrent.futures import ThreadPoolExecutor  # what a trial of a search imports, each of hundreds does

    with ThreadPoolExecutor(processors) as pool:
        compiled = list(
            pool.map(
                lambda one: toolchain.run([*unit, f"-DLIBRARY={one[0][0]}", f"-DPART={one[0][1]}", "-c", "-o", one[1]]),
                objects.items(),
            )
        )
        said = "".join(one.stdout for one in compiled)
        failed: list[str] = next((one.args for one in compiled if one.returncode), [])
        if failed:
            return said, failed
        of = {n: [file for (library, _), file in objects.items() if library == n] for n in libraries}
        linked = list(pool.map(lambda n: toolchain.run([*link, *of[n], "-o", str(work / library_name(n))]), libraries))
    said += "".join(one.stdout for one in linked)
    return said, next((one.args for one in linked if one.returncode), [])


def _resources(variant: Variant, home: Path) -> dict[str, Any]:
    """``kernels``: registers, stack, spills and shared memory per kernel and architecture; or why they are not known.

    What was read is kept in the cache.
    """
    try:
        kernels = readers.read("ptxas", home / LOG)["kernels"] if variant.device == "cuda" else []
    except readers.Unreadable as e:
        return {"kernels": [], "resources_unread": str(e)}
    record = json.loads((home / RECORD).read_text(encoding="utf-8"))
    documents.write_json(home / RECORD, {**record, "kernels": kernels})
    return {"kernels": kernels}


def _first_errors(output: str) -> str:
    lines = [line for line in output.splitlines() if "error" in line.lower()] or output.splitlines()
    return "\n".join(lines[:8]) or "the compiler printed nothing"
