"""Documents and archives that take much more memory than disk, and fcctl in a process that may not take much."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LIMIT_MB = 512
#: The peak is the kernel's own count.
_CHILD = """\
import resource, sys
limit = int(sys.argv.pop(1)) * 1024 * 1024
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
from orchestrator.cli.main import main
code = main(sys.argv[1:])
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
sys.stderr.write(f"\\nPEAK {int(peak.split()[1]) // 1024}\\n")
sys.exit(code)
"""


@dataclass(frozen=True)
class Limited:
    """How a command ended, and the most memory that it took, MiB."""

    code: int
    peak_mb: int
    out: str
    err: str


def fcctl(folder: Path, *words: str, limit_mb: int = LIMIT_MB, env: dict[str, str] | None = None) -> Limited:
    """``fcctl WORDS`` in ``folder`` by a process whose data may take ``limit_mb``."""
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, str(limit_mb), *words], cwd=folder, env=env or dict(os.environ),
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    err, _, peak = done.stderr.rpartition("\nPEAK ")
    return Limited(done.returncode, int(peak or LIMIT_MB * 10), done.stdout, err or done.stderr)


def documents(size: int) -> Iterator[tuple[str, bytes]]:
    """Eight documents of some ``size`` bytes, with the kind of each: what each kind has most of, and brackets."""
    for kind, key, element in (
        ("metrics", "more", b"{},"),
        ("benchmark", "benchmarks", b'{"name":"a","stats":{"p50":1.5}},'),
        ("build", "kernels", b'{"name":"k"},'),
        ("correctness", "cases", b'{"passed":false},'),
        ("profile", "kernels", b"{},"),
        ("tuning", "trials", b'{"number":1,"state":"lost"},'),
        ("environment", "checks", b'{"status":"fail"},'),
        ("benchmark", "comparisons", b"[],"),
    ):
        yield kind, filled(kind, key, element, size)


def filled(kind: str, key: str, element: bytes, size: int) -> bytes:
    head = b'{"kind":"%s","schema_version":1,"metrics":{"a":1},"summary":{},"%s":[' % (kind.encode(), key.encode())
    return head + element * (size // len(element)) + b"NaN]}"


def tar_header(size: int = 0, kind: bytes = b"0", **fields: bytes) -> bytes:
    """Of a tar, with the fields ``size_text`` and ``checksum`` as given, the checksum right where it is not."""
    info = tarfile.TarInfo("manifest.json")
    info.size, info.type = size, kind
    block = bytearray(info.tobuf(tarfile.USTAR_FORMAT))
    if "size_text" in fields:
        block[124:136] = fields["size_text"].ljust(12, b"\0")
    block[148:156] = b" " * 8
    block[148:156] = fields.get("checksum", b"%06o" % sum(block) + b"\0 ").ljust(8, b"\0")
    return bytes(block)
