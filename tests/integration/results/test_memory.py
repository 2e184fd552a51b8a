"""What a hostile machine sent takes little memory, whatever is done with it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard

from orchestrator.results.records import DocumentRecord, StepRecord
from tests.conftest import home_of_its_own
from tests.support.hostile_documents import LIMIT_MB, documents, fcctl, tar_header
from tests.support.stores import NOVEMBER, make_id, make_record, written

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the limit is one of Linux")
#: What the documents of a run and all else of the process may take.
MOST_MB = 256
CONFIG = '[project]\nname = "demo"\n'


def workspace(folder: Path, size: int, runs: int) -> Path:
    """With runs of eight documents each."""
    folder.mkdir()
    (folder / "fcctl.toml").write_text(CONFIG)
    for i in range(runs):
        refs = [DocumentRecord(kind=kind, path=f"steps/s/out/{n}.json") for n, (kind, _) in enumerate(documents(1))]
        step = StepRecord(id="s", status="passed", documents=refs)
        at = written(folder / "results", make_record(make_id(at=NOVEMBER + i), steps=[step]))
        (at / "steps" / "s" / "out").mkdir(parents=True)
        for ref, (_, content) in zip(refs, documents(size), strict=True):
            (at / ref.path).write_bytes(content)
    return folder


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Of documents that just fit in memory, one at a time."""
    with pytest.MonkeyPatch.context() as patch, home_of_its_own(patch):
        yield workspace(tmp_path_factory.mktemp("memory") / "ws", 4_000_000, 2)


@pytest.mark.full
def test_a_run_is_shown(two_runs: Path) -> None:
    shown = fcctl(two_runs, "results", "show")
    assert (shown.code, shown.peak_mb < MOST_MB) == (0, True), (shown.peak_mb, shown.err)
    assert "not shown: s: steps/s/out/1.json: reading it needs" in shown.out
    assert "\nMetrics\n" in shown.out, "what fits is shown"


@pytest.mark.full
@pytest.mark.parametrize(
    "words",
    ["show --json", "compare last~1 last", "compare last~1 last --json", "reindex", "report last -o r.html",
     "export last -o r.json", "export last -o r.tar.zst"],
)  # fmt: skip
def test_it_is_used_in_other_ways(two_runs: Path, words: str) -> None:
    done = fcctl(two_runs, "results", *words.split())
    assert (done.code, done.peak_mb < LIMIT_MB) == (0, True), (done.peak_mb, done.err[-2000:])
    if words.endswith("--json"):
        assert json.loads(done.out)["problems"], "what was not read is named"


def archive(name: str) -> bytes:
    """What made an import take much memory or time, packed: it is some kilobytes."""
    if name == "a size of -1":
        return zstandard.compress(tar_header(size_text=b"-1") + bytes(1_000_000_000))
    if name == "extended headers":
        return zstandard.compress((tar_header(13, b"x") + b"13 comment=x\n".ljust(512, b"\0")) * 1_000_000)
    manifest = b"[" + b"{}," * (10_000_000 if name == "a large manifest" else 1_200_000) + b"0]"
    window = zstandard.ZstdCompressionParameters.from_level(3, window_log=27)
    packer = zstandard.ZstdCompressor(compression_params=window)
    return packer.compress(tar_header(len(manifest)) + manifest + bytes(-len(manifest) % 512))


@pytest.mark.full
@pytest.mark.parametrize("name", ["a size of -1", "extended headers", "a large manifest", "a manifest that just fits"])
def test_a_hostile_archive_is_refused_at_once(tmp_path: Path, private_home: Path, name: str) -> None:
    (tmp_path / "fcctl.toml").write_text(CONFIG)
    (tmp_path / "bad.tar.zst").write_bytes(archive(name))
    done = fcctl(tmp_path, "results", "import", "bad.tar.zst")
    assert (done.code, done.peak_mb < MOST_MB) == (1, True), (done.peak_mb, done.err[-2000:])
    assert "bad.tar.zst was refused: fcctl imported nothing from it" in done.err


@pytest.mark.full
def test_eight_documents_of_30_mb(tmp_path: Path, private_home: Path) -> None:
    done = fcctl(workspace(tmp_path / "ws", 30_000_000, 1), "results", "show")
    assert (done.code, done.peak_mb < MOST_MB) == (0, True), (done.peak_mb, done.err[-2000:])
