"""The host program as one file: a reproducible ``.pyz`` of the installed ``fcctl_remote`` package.

The same sources give the same bytes everywhere: members sorted, one time stamp, not compressed (zlib's versions
differ). The sha256 is the archive's name on the host, so it is uploaded once."""

from __future__ import annotations

import contextlib
import hashlib
import io
from dataclasses import dataclass
from pathlib import Path

from orchestrator.base.errors import FcctlError
from orchestrator.base.files import user_folder, write_atomic

#: The earliest time a zip file can hold.
_EPOCH = (1980, 1, 1, 0, 0, 0)
_PACKAGE = "fcctl_remote"
_MAIN = "archive_main.py"


@dataclass(frozen=True)
class RunnerArchive:
    path: Path
    sha256: str


def build_runner(dest_dir: Path | None = None) -> RunnerArchive:
    """The archive, built unless one of the same sources is in ``dest_dir`` (default: the user's cache folder). Raises
    FcctlError: ``dest_dir`` cannot be written."""
    sources = _sources()
    identity = hashlib.sha256()
    for name, content in sources:
        identity.update(b"%s\0%d\0" % (name.encode(), len(content)))
        identity.update(content)
    folder = dest_dir if dest_dir is not None else _cache_dir()
    marker = folder / f"runner-{identity.hexdigest()[:32]}.pyz"
    with contextlib.suppress(OSError):
        digest = hashlib.sha256(marker.read_bytes()).hexdigest()
        # The name of the second link is the archive's own hash: a damaged file does not match it.
        if (folder / f"{digest}.pyz").is_file():
            return RunnerArchive(folder / f"{digest}.pyz", digest)
    try:
        return _write(folder, marker, _archive(sources))
    except OSError as error:
        raise FcctlError(
            "could not build the host program",
            cause=f"{error.strerror} ({folder})",
            hint="choose a folder that you may write to: export XDG_CACHE_HOME=DIR",
        ) from error


def _cache_dir() -> Path:
    return user_folder("cache") / "runner"


def _sources() -> list[tuple[str, bytes]]:
    """Archive name and content of each module, sorted."""
    import fcctl_remote

    root = Path(fcctl_remote.__file__).parent
    sources = [
        (f"{_PACKAGE}/{path.relative_to(root).as_posix()}", path.read_bytes())
        for path in root.rglob("*.py")
        if "__pycache__" not in path.parts
    ]
    sources.append(("__main__.py", (root / _MAIN).read_bytes()))
    return sorted(sources)


def _archive(sources: list[tuple[str, bytes]]) -> bytes:
    import zipfile  # not needed if the archive exists

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as bundle:
        for name, content in sources:
            member = zipfile.ZipInfo(name, _EPOCH)
            member.create_system = 3  # Unix, also when built elsewhere
            member.external_attr = 0o644 << 16
            bundle.writestr(member, content)
    return buffer.getvalue()


def _write(folder: Path, marker: Path, content: bytes) -> RunnerArchive:
    digest = hashlib.sha256(content).hexdigest()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{digest}.pyz"
    for target in (path, marker):
        write_atomic(folder, target.name, content, mode=0o600)
    return RunnerArchive(path, digest)
