"""The libraries of a search as one zip file: Optuna, Dask and their requirements in pure Python, and our own packages.

It has the versions installed here, without compiled files, which all of these packages can omit; the machine itself has
numpy and psutil. It is built when a job needs it first, and cached until something changes.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import zipfile
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from fcctl_remote.base.bundles import CONTENTS
from orchestrator.base.errors import ConfigError, FcctlError, NotFoundError
from orchestrator.base.files import user_folder, write_atomic
from orchestrator.machines.interfaces import Bundle

if TYPE_CHECKING:
    from packaging.requirements import Requirement

ROOTS = ("optuna", "distributed")
#: Compiled: the machine's Python must have them.
MODULES = ("numpy", "psutil")
#: Requirements that a search never uses: of Optuna's SQL storage, Dask's collections.
UNUSED = frozenset({"sqlalchemy", "alembic", "mako", "greenlet", "typing-extensions", "fsspec", "partd"})
OURS = ("fcctl_remote", "fcctl_tune")
#: Python imports first from the folder that it runs; with ``-m`` from the present one, the user's.
_MAIN = b"import sys\nfrom fcctl_tune.__main__ import main\n\nsys.exit(main())\n"
#: Minor versions of Python 3 that are considered.
PYTHONS = tuple(range(9, 20))
#: The earliest time a zip file can hold.
_EPOCH = (1980, 1, 1, 0, 0, 0)
_COMPILED = (".so", ".pyd", ".dll", ".dylib", ".pyc")
#: A package's metadata that other packages read at run time.
_FACTS = frozenset({"METADATA", "entry_points.txt"})
KEPT = 4


class TuneBundles:
    """See :class:`orchestrator.machines.interfaces.Bundles`."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    def tune(self) -> Bundle:
        distributions = _closure()
        own = list(_own_files())
        identity = _identity(distributions, own)
        folder = self._folder or _cache_dir()
        try:
            return _whole(folder, f"{identity}-*.zip") or _write(folder, identity, _archive(distributions, own))
        except OSError as error:
            raise FcctlError(
                "could not pack the search's libraries",
                cause=f"{error.strerror} ({error.filename or folder})",
                hint="choose a folder that you may write to: export XDG_CACHE_HOME=DIR",
            ) from error

    def find(self, sha256: str) -> Bundle:
        folder = self._folder or _cache_dir()
        bundle = _whole(folder, f"*{sha256}.zip")
        if bundle is None:
            raise NotFoundError(
                "this computer no longer has the libraries of this search",
                cause=f"{folder} has no file of the content {sha256}, and the machine does not have them either",
                hint="start a new search",
            )
        return bundle


def _cache_dir() -> Path:
    return user_folder("cache") / "bundles"


def _whole(folder: Path, pattern: str) -> Bundle | None:
    """The file of that name, which ends in the hash of its content, if it is undamaged."""
    for path in folder.glob(pattern):
        with contextlib.suppress(OSError):
            content = path.read_bytes()
            sha256 = hashlib.sha256(content).hexdigest()
            if path.stem.endswith(sha256):
                os.utime(path)
                return Bundle(path, sha256, len(content))
    return None


def _closure() -> list[metadata.Distribution]:
    """The roots and their requirements, sorted by name. Raises: ConfigError, if one is not installed."""
    needed: dict[str, metadata.Distribution] = {}
    for root in ROOTS:
        try:
            metadata.distribution(root)
        except metadata.PackageNotFoundError:
            raise _not_installed(root) from None
    from packaging.requirements import Requirement  # there as soon as the roots are

    waiting = list(ROOTS)
    while waiting:
        name = _folded(waiting.pop())
        if name in needed or name in UNUSED or name in MODULES:
            continue
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # for another Python or system
        needed[name] = distribution
        waiting += [
            r.name for r in map(Requirement, distribution.requires or []) if any(_is_needed(r, n) for n in PYTHONS)
        ]
    return [needed[name] for name in sorted(needed)]


def _not_installed(name: str) -> ConfigError:
    from orchestrator.base.installation import to_install

    return ConfigError(
        "a search needs libraries that are not installed on this computer",
        cause=f"{name} is not installed; fcctl sends it to the machine from this computer",
        hint=to_install("tune"),
    )


def _is_needed(requirement: Requirement, minor: int) -> bool:
    """Whether Python 3 of that minor version, on Linux, needs the requirement."""
    machine = {"python_version": f"3.{minor}", "python_full_version": f"3.{minor}.0", "extra": ""}
    system = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
    return requirement.marker is None or bool(requirement.marker.evaluate({**machine, **system}))


def _least_python(distributions: Sequence[metadata.Distribution]) -> tuple[int, str]:
    """The least minor version of Python 3 for all of it, and which package needs that."""
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

    here = {_folded(d.name) for d in distributions} | UNUSED | set(MODULES)
    least, why = PYTHONS[0], "fcctl"
    for distribution in distributions:
        versions = SpecifierSet(str(distribution.metadata.json.get("requires_python") or ""))
        requirements = list(map(Requirement, distribution.requires or []))
        for minor in PYTHONS:
            missing = (r.name for r in requirements if _folded(r.name) not in here and _is_needed(r, minor))
            lacking = next(missing, None)
            if versions.contains(f"3.{minor}.0") and lacking is None:
                break
            if minor >= least:
                named = f"{distribution.name} {distribution.version}"
                least, why = (
                    minor + 1,
                    named if lacking is None else f"{named} needs {lacking}, which is not installed here",
                )
    return least, why


def _folded(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def _own_files() -> Iterator[tuple[str, bytes]]:
    import fcctl_remote
    import fcctl_tune

    yield "__main__.py", _MAIN
    for name, package in zip(OURS, (fcctl_remote, fcctl_tune), strict=True):
        root = Path(str(package.__file__)).parent
        for path in sorted(root.rglob("*.py")):
            if "__pycache__" not in path.parts:
                yield f"{name}/{path.relative_to(root).as_posix()}", path.read_bytes()


def _identity(distributions: Sequence[metadata.Distribution], own: Sequence[tuple[str, bytes]]) -> str:
    """A hash of the installed files' lists and of our own sources."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for distribution in distributions:
        digest.update(f"{distribution.name} {distribution.version}\0{distribution.read_text('RECORD')}\0".encode())
    for name, content in own:
        digest.update(b"%s\0%d\0" % (name.encode(), len(content)))
        digest.update(content)
    return digest.hexdigest()[:32]


def _installed_files(distribution: metadata.Distribution) -> Iterator[tuple[str, bytes]]:
    """Archive name and content of its files, without tests and compiled files."""
    for file in distribution.files or []:
        name = PurePosixPath(file.as_posix())
        if name.is_absolute() or ".." in name.parts or name.suffix in _COMPILED or "tests" in name.parts:
            continue
        if name.parts[0].endswith((".dist-info", ".egg-info")) and not (name.name in _FACTS or "LICENSE" in name.name):
            continue
        with contextlib.suppress(FileNotFoundError):  # compiled by the installer, and deleted
            yield str(name), Path(str(file.locate())).read_bytes()


def _archive(distributions: Sequence[metadata.Distribution], own: Sequence[tuple[str, bytes]]) -> bytes:
    members = dict(own)
    for distribution in distributions:
        members.update(_installed_files(distribution))
    minor, why = _least_python(distributions)
    contents = {
        "schema_version": 1, "python": f"3.{minor}", "python_for": why, "modules": list(MODULES),
        "distributions": {d.name: d.version for d in distributions},
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in sorted(members.items())},
    }  # fmt: skip
    members[CONTENTS] = json.dumps(contents, indent=1).encode() + b"\n"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name in sorted(members):
            member = zipfile.ZipInfo(name, _EPOCH)
            member.create_system = 3  # Unix, also when built elsewhere
            member.external_attr = 0o644 << 16
            member.compress_type = zipfile.ZIP_DEFLATED
            bundle.writestr(member, members[name])
    return buffer.getvalue()


def _write(folder: Path, identity: str, content: bytes) -> Bundle:
    sha256 = hashlib.sha256(content).hexdigest()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{identity}-{sha256}.zip"
    write_atomic(folder, path.name, content, mode=0o600, durable=False)
    for old in sorted(folder.glob("*.zip"), key=_last_use, reverse=True)[
        KEPT:
    ]:  # a resumed run may need an earlier one
        old.unlink(missing_ok=True)
    return Bundle(path, sha256, len(content))


def _last_use(path: Path) -> float:
    """The time of its last use; 0 if another fcctl has deleted it."""
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_mtime
    return 0.0
