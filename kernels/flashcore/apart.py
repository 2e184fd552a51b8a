"""A kernel as a file of device code, and beside it the library that launches it.

The library is the same for all configurations alike (``Variant.common``): it is compiled once and kept in the cache. So
a search's trials cost a compiler the kernel alone (docs/flagship-notes.md has the figures).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess

from flashcore import toolchain

#: For the library: its kernels come from a file (csrc/driver.cuh).
FROM_FILE = "-DCODE_FROM_FILE"
#: For that file: the kernel and nothing of the host's; and without the header that nvcc includes before any source, as
#: the guard of that is set (csrc/declarations.cuh).
ALONE = "-DKERNEL_ALONE"
LEAN = ("-D__CUDA_RUNTIME_H__", "-DOWN_DECLARATIONS")
#: What the assembler says of each kernel, by the name that it has in the file.
NAMED = re.compile(r"Compiling entry function '([^']+)'")
#: Of code for one architecture, and for several.
CUBIN, FATBIN = "kernel.cubin", "kernel.fatbin"


@dataclass(frozen=True)
class Code:
    file: Path
    kernel: str  # its name there


def code_in(folder: Path, log: Path) -> Code | None:
    """The file of device code that is in ``folder``, if one is, with the kernel that the compiler's ``log`` names."""
    file = next((folder / name for name in (CUBIN, FATBIN) if (folder / name).exists()), None)
    if file is None:
        return None
    named = NAMED.search(log.read_text(encoding="utf-8"))
    return Code(file, named[1]) if named else None


def build(
    kernel: Sequence[str], host: Sequence[str], library: Path, kept: Path, *, lean: bool
) -> tuple[str, list[str]]:
    """Compile with the command ``kernel``, ``lean`` without CUDA's header, to a file beside ``library``. That is what
    is ``kept``, or else compiled with the command ``host``. What was said, and the command that failed, if one did."""
    several = sum("-gencode" in word for word in kernel) > 1
    kind, file = ("-fatbin", FATBIN) if several else ("-cubin", CUBIN)
    own = [*(word for word in kernel if word != "-shared"), ALONE, *(LEAN if lean else ()), kind]
    own += ["-o", str(library.with_name(file))]
    if several:
        own.append(f"--threads={toolchain.processors()}")  # architectures at once
    if kept.exists():
        made, launches = toolchain.run(own), None
    else:  # both at once
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(1) as pool:
            begun = pool.submit(_have, host, library, kept, wait=False)
            made = toolchain.run(own)
        launches = begun.result()
    if launches is None and not made.returncode:
        launches = _have(host, library, kept, wait=True)
    done = [made, launches] if launches else [made]
    return "".join(one.stdout for one in done), next((one.args for one in done if one.returncode), [])


def _have(command: Sequence[str], library: Path, kept: Path, *, wait: bool) -> CompletedProcess[str] | None:
    """Have the library: what is ``kept``, or compiled and kept. Of all the builds that begin at once one compiles it;
    unless it is to ``wait`` for that one, there is nothing for the others yet."""
    with kept.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return None
        except OSError:  # a file system without locks: it may be compiled twice
            pass
        argv = [*command, FROM_FILE, "-o", str(library)]
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(kept, library)
            return CompletedProcess(argv, 0, "")
        done = toolchain.run(argv)
        if not done.returncode:
            new = library.with_suffix(".kept")
            shutil.copyfile(library, new)
            os.replace(new, kept)
        return done
