"""Archives of runs: a tar.zst whose first member, ``manifest.json``, names every file that follows, in order. Links,
devices, other names, doubles and longer files are refused."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import stat
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from orchestrator.base import json_text
from orchestrator.base import run_id as run_ids
from orchestrator.base import safe_paths as paths
from orchestrator.base.errors import ConflictError, FcctlError, HostFault, NotFoundError
from orchestrator.base.safe_paths import harmless
from orchestrator.results.look import Shown

if TYPE_CHECKING:
    from orchestrator.results.store.intake import IncomingRun
    from orchestrator.results.store.store import FileStore


FORMAT, VERSION = "fcctl-runs", 1
MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 48 * 1024 * 1024
#: The most an archive may unpack to, and by how much more than its own size.
MAX_BYTES, MAX_FILES, MAX_RATIO, FREE_BYTES = 20 * 1024**3, 200_000, 1000, 64 * 1024 * 1024
_SHA256 = re.compile(r"[0-9a-f]{64}")


class BadArchive(ValueError):
    """It is no archive of runs, or a hostile one; says why."""


@dataclass(frozen=True)
class Item:
    """One file: of which run, its path there, its size in bytes and its sha256."""

    run_id: str
    path: str
    size: int
    sha256: str

    @property
    def name(self) -> str:
        return f"{self.run_id}/{self.path}"


def manifest(items: Iterable[Item]) -> dict[str, Any]:
    """What goes first into an archive."""
    runs: dict[str, Any] = {}
    for item in items:
        files = runs.setdefault(item.run_id, {"files": []})["files"]
        files.append({"path": item.path, "size": item.size, "sha256": item.sha256})
    return {"format": FORMAT, "version": VERSION, "runs": runs}


def read_manifest(value: Any, archive_bytes: int) -> list[Item]:
    """Every file that must follow, in order. Raises BadArchive: it is no manifest, or announces what is not allowed."""
    if not isinstance(value, dict) or value.get("format") != FORMAT or not isinstance(value.get("runs"), dict):
        raise BadArchive("its manifest was not written by fcctl")
    if value.get("version") != VERSION:
        raise BadArchive(f"it has version {value.get('version')!r:.20}; this fcctl reads version {VERSION}")
    items: list[Item] = []
    for run_id, run in value["runs"].items():
        if not run_ids.is_valid(run_id):
            raise BadArchive(f"{run_id!r:.80} is not a run id")
        items += _items_of(run_id, run)
        if len(items) > MAX_FILES:
            raise BadArchive(f"its manifest lists more than {MAX_FILES} files")
    total = sum(item.size for item in items)
    if total > MAX_BYTES:
        raise BadArchive(f"its manifest lists {total} bytes, more than {MAX_BYTES}")
    if total > FREE_BYTES + MAX_RATIO * archive_bytes:
        raise BadArchive(f"{archive_bytes} bytes that unpack to {total} bytes are not plausible")
    return items


def _items_of(run_id: str, run: Any) -> list[Item]:
    files = run.get("files") if isinstance(run, dict) else None
    if not isinstance(files, list):
        raise BadArchive(f"run {run_id} has no list of files")
    items = [_item(run_id, file) for file in files]
    taken: set[str] = set()
    for item in items:
        key = paths.folded(paths.harmless(item.path))
        if key in taken:
            raise BadArchive(f"{item.name!r:.200} is listed twice")
        taken.add(key)
    if "run.json" not in taken:
        raise BadArchive(f"run {run_id} has no run.json")
    return items


def _item(run_id: str, file: Any) -> Item:
    path, size, digest = (
        (file.get(key) for key in ("path", "size", "sha256")) if isinstance(file, dict) else (None,) * 3
    )
    if not isinstance(path, str) or paths.fault(path) not in (None, "reserved") or path.startswith(paths.UNFINISHED):
        raise BadArchive(f"the name {path!r:.200} is not allowed")
    if type(size) is not int or size < 0 or not isinstance(digest, str) or not _SHA256.fullmatch(digest):
        raise BadArchive(f"{path!r:.200} has no size and sha256")
    return Item(run_id, path, size, digest)


#: Bytes that the tar headers of one file may take, with what Python reads ahead.
HEADER_BYTES = 64 * 1024


class _Bounded:
    """A stream that gives at most ``left`` bytes: a tar header may announce further headers of any size."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self.left = stream, HEADER_BYTES

    def read(self, size: int = -1) -> bytes:
        piece = self._stream.read(size)
        self.left -= len(piece)
        if self.left < 0:
            raise BadArchive("a tar header is too long")
        return piece


def members(stream: IO[bytes]) -> Iterator[tuple[str, int, IO[bytes]]]:
    """Name, size and content of each file of a tar; a content is to be read before the next file. Raises BadArchive:
    it is no tar, or holds anything else than plain files."""
    bounded = _Bounded(stream)
    try:
        with tarfile.open(fileobj=bounded, mode="r|") as tar:  # type: ignore[call-overload]  # it only reads
            while (member := tar.next()) is not None:
                tar.members.clear()  # else it keeps them all
                content = tar.extractfile(member) if member.isreg() and not member.issparse() else None
                if content is None:
                    raise BadArchive(f"{member.name!r:.200} is not a regular file")
                bounded.left = HEADER_BYTES + member.size
                yield member.name, member.size, content
    except BadArchive:
        raise
    except (tarfile.TarError, ValueError, ArithmeticError) as error:  # Python's reader raises all of these
        raise BadArchive(f"its tar is damaged: {str(error)[:200]}") from None


LEVEL = 9
#: What a decompressor may need of memory; zstd's own default for files made by strangers.
WINDOW_BYTES = 128 * 1024 * 1024
#: Bytes that are read at once.
CHUNK = 1024 * 1024
#: In place of a file that does not follow.
_NONE: tuple[str, int, IO[bytes]] = "", 0, io.BytesIO()


@dataclass
class Imported:
    """What an import did, by run id."""

    new: list[str] = field(default_factory=list)
    here_already: list[str] = field(default_factory=list)  # the very same files
    files: int = 0
    bytes: int = 0
    #: Files that are stored under another name: a program of this computer would act on the one they had.
    renamed: int = 0


def write(runs: Iterable[Shown], stream: IO[bytes]) -> None:
    """All plain files of the runs' folders as tar.zst, the same bytes for the same files whoever packs them."""
    import zstandard

    folders = {shown.record.run_id: shown.folder for shown in runs}
    items = [item for run_id in sorted(folders) for item in _items(run_id, folders[run_id])]
    packer = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True)
    with (
        packer.stream_writer(stream, closefd=False) as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as tar,
    ):
        content = json.dumps(manifest(items), indent=1).encode()
        _add(tar, MANIFEST, len(content), io.BytesIO(content))
        for item in items:
            with (folders[item.run_id] / item.path).open("rb") as file:
                _add(tar, item.name, item.size, file)


def _items(run_id: str, folder: Path) -> Iterator[Item]:
    found = []
    for top, _folders, names in os.walk(folder, followlinks=False):
        for name in names:
            at = Path(top) / name
            if stat.S_ISREG(at.lstat().st_mode):  # what is none was not put there by fcctl
                with at.open("rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                found.append(Item(run_id, at.relative_to(folder).as_posix(), at.stat().st_size, digest))
    return iter(sorted(found, key=lambda item: item.path))


def _add(tar: tarfile.TarFile, name: str, size: int, content: IO[bytes]) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o644
    tar.addfile(info, content)


def read(store: FileStore, path: Path, *, keep: bool = True) -> Imported:
    """Take in the runs of an archive: all of them, once every byte of it is verified, or none. Without ``keep``, verify
    only. Raises NotFoundError: there is no such file; FcctlError: it is damaged, hostile, or no archive of runs;
    nothing of it was kept; ConflictError: a run of the same id and other content is here."""
    try:
        return _read(store, path, keep)
    except FileNotFoundError:
        raise NotFoundError(
            f"the file {path} does not exist", hint="write an archive: fcctl results export -o runs.tar.zst RUN..."
        ) from None
    except BadArchive as exc:
        raise _refused(path, str(exc)) from exc
    except HostFault as exc:
        raise _refused(path, exc.message) from exc
    except OSError as exc:
        raise FcctlError(
            f"could not read {path}", cause=exc.strerror, hint=f"check its permissions: ls -l {path}"
        ) from exc


def _read(store: FileStore, path: Path, keep: bool) -> Imported:
    import zstandard

    with path.open("rb") as file, contextlib.ExitStack() as undo:
        size = os.fstat(file.fileno()).st_size
        unpacked = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES).stream_reader(file)
        try:
            files = members(unpacked)
            items = read_manifest(_manifest(*next(files, _NONE)), size)
            _room(store, items)
            taken: dict[str, IncomingRun] = {}
            for run_id in dict.fromkeys(item.run_id for item in items):
                if not store.is_complete(run_id):
                    taken[run_id] = store.incoming(run_id)
                    undo.callback(taken[run_id].discard)
            for item in items:
                name, announced, content = next(files, _NONE)
                if (name, announced) != (item.name, item.size):
                    raise BadArchive(f"the next file must be {item.name!r:.200}, but is {name!r:.200}")
                _take(item, content, taken.get(item.run_id))
            if next(files, None) is not None:
                raise BadArchive("it contains more than its manifest lists")
            return _finish(store, items, taken, keep)
        except tarfile.TarError as exc:  # a content that ends too early
            raise BadArchive(f"its tar is damaged: {str(exc)[:200]}") from exc
        except zstandard.ZstdError as exc:
            raise BadArchive(f"zstd reports: {str(exc)[:200]}") from exc


def _manifest(name: str, size: int, content: IO[bytes]) -> object:
    if name != MANIFEST or size > MAX_MANIFEST_BYTES:
        raise BadArchive("its first file is not a manifest")
    try:
        return json_text.Budget().loads(content.read())
    except json_text.TooLarge as exc:
        raise BadArchive(f"its manifest is too large: {exc}") from None
    except ValueError:
        raise BadArchive("its manifest is not JSON") from None


def _room(store: FileStore, items: Sequence[Item]) -> None:
    total = sum(item.size for item in items)
    folder = store.folder(items[0].run_id).parent if items else None
    while folder is not None and not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if folder is not None and total > shutil.disk_usage(folder).free:
        raise FcctlError(
            f"this computer's disk is too full for the archive, which unpacks to {total} bytes",
            hint=f"free disk space for {folder}, for example: fcctl results prune --older-than 90d --dry-run",
        )


def _take(item: Item, content: IO[bytes], run: IncomingRun | None) -> None:
    """Compares a file with the manifest as it comes, and writes it into ``run``, which this workspace lacks."""
    digest, offset = hashlib.sha256(), 0
    if run is not None and not item.size:
        run.write(item.path, 0, b"")
    while piece := content.read(CHUNK):
        digest.update(piece)
        if run is not None:
            run.write(item.path, offset, piece)
        offset += len(piece)
    if digest.hexdigest() != item.sha256:
        raise BadArchive(f"{item.name!r:.200} is damaged: its sha256 differs from the manifest")


def _finish(store: FileStore, items: Sequence[Item], taken: Mapping[str, IncomingRun], keep: bool) -> Imported:
    here = dict.fromkeys(item.run_id for item in items if item.run_id not in taken)
    for item in items:
        if item.run_id in here and not _same(store.folder(item.run_id) / harmless(item.path), item):
            raise ConflictError(
                f"this workspace already has run {item.run_id}, and its files differ from the archive",
                cause="one of the two was changed after the run was collected",
                hint=f"move the workspace's files away, then import again: {store.folder(item.run_id)}",
            )
    for run in taken.values():
        run.check()
    if keep:
        for run in taken.values():
            run.finish()
    renamed = sum(item.run_id in taken and harmless(item.path) != item.path for item in items)
    return Imported(list(taken), list(here), len(items), sum(item.size for item in items), renamed)


def _same(path: Path, item: Item) -> bool:
    try:
        if not stat.S_ISREG(path.lstat().st_mode) or path.stat().st_size != item.size:
            return False
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == item.sha256
    except OSError:
        return False


def _refused(path: Path, why: str) -> FcctlError:
    return FcctlError(
        f"{path} was refused: fcctl imported nothing from it",
        cause=why,
        hint="export it again on the computer that has the runs: fcctl results export -o runs.tar.zst RUN...",
    )
