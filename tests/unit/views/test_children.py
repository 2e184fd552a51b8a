"""What the dashboard makes of its children's words."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from pathlib import Path

import pytest

from orchestrator.app import SystemClock
from orchestrator.base.errors import FcctlError, NotFoundError, RunNotFound
from orchestrator.results.store.store import FileStore
from orchestrator.views.dashboard.children import Children
from orchestrator.views.dashboard.run_pages import not_cancelled
from tests.support.measured_runs import measured, simple
from tests.support.waiting import wait_for

SAYS = "import sys; sys.stderr.write({said!r}); sys.stdout.write({out!r}); sys.exit({code})"
ID = "20261121t081530z-phase1-l4-3fa9c1"


def child(tmp_path: Path, said: str = "", out: str = "", code: int = 0) -> Children:
    script = tmp_path / "fcctl.py"
    script.write_text(SAYS.format(said=said, out=out, code=code))
    return Children([sys.executable, str(script)], tmp_path)


@pytest.mark.parametrize(("out", "code"), [('{"a": 1}\n', 0), ('{"regression": true}', 9)], ids=["", "a regression"])
def test_a_document_is_what_it_printed(tmp_path: Path, out: str, code: int) -> None:
    assert asyncio.run(_command(child(tmp_path, out=out, code=code))) == json.loads(out)


def test_an_error_keeps_its_kind(tmp_path: Path) -> None:
    said = '{"error": {"code": "run_not_found", "message": "no run", "cause": null, "hint": "fcctl ps"}}\n'
    with pytest.raises(RunNotFound, match="no run") as found:
        asyncio.run(_command(child(tmp_path, said, code=102)))
    assert found.value.hint == "fcctl ps"


def test_what_died_without_a_word_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FcctlError, match="exit code 3"):
        asyncio.run(_command(child(tmp_path, code=3)))


def test_of_several_runs_the_one_that_goes_on_is_told(tmp_path: Path) -> None:
    rows = [
        {"run_id": "a", "status": "cancelled", "changed": True},
        {"run_id": "b", "status": None, "changed": False, "error": "cannot reach b"},
    ]
    told = asyncio.run(_command(child(tmp_path, out=json.dumps({"runs": rows}), code=6)))
    assert not_cancelled(told) == "b: cannot reach b"
    assert not_cancelled({"runs": rows[:1]}) == ""


def test_a_worker_that_was_warmed_makes_the_first_part(tmp_path: Path) -> None:
    """A first chart took over a second, most of which was importing what draws."""

    async def first() -> tuple[int, int]:
        children = child(tmp_path)
        children.warm()
        children.warm()  # once is enough
        while not children._idle:
            await asyncio.sleep(0.05)
        (worker,) = children._idle
        with pytest.raises(FcctlError):
            await children.work("trend", results=str(tmp_path), root="", base="", benchmark="b", variant="", ends=[])
        (same,) = children._idle
        same.kill()
        await same.wait()
        return worker.pid, same.pid

    warmed, used = asyncio.run(first())
    assert warmed == used


@pytest.mark.parametrize("said", [f"note: run {ID}\n", f"source: reading\nrun {ID}\nsync: 3 files\n"])
def test_a_launch_is_known_by_its_run(tmp_path: Path, said: str) -> None:
    assert asyncio.run(_launch(child(tmp_path, said))) == ID


def test_a_run_outlives_the_server(tmp_path: Path) -> None:
    script = tmp_path / "fcctl.py"
    script.write_text(
        f"import pathlib, sys, time\nsys.stderr.write('run {ID}\\n')\nsys.stderr.flush()\n"
        "go = pathlib.Path('go')\nwhile not go.exists(): time.sleep(0.01)\npathlib.Path('done').touch()\n"
    )
    assert asyncio.run(_launch(Children([sys.executable, str(script)], tmp_path))) == ID
    gc.collect()  # what the server's loop had of it is gone
    (tmp_path / "go").touch()
    wait_for((tmp_path / "done").exists)


def test_a_launch_that_is_refused_says_why(tmp_path: Path) -> None:
    said = "source: reading\nerror: it could cost $9\ncause: the cap is $2\nhint: raise it\n"
    with pytest.raises(FcctlError, match=r"it could cost \$9") as found:
        asyncio.run(_launch(child(tmp_path, said, code=5)))
    assert (found.value.cause, found.value.hint) == ("the cap is $2", "raise it")


@pytest.mark.parametrize("said", [f"note: running {ID}\n", "run ../../etc\n", "run nothing\n"])
def test_other_words_are_no_run(tmp_path: Path, said: str) -> None:
    with pytest.raises(FcctlError):
        asyncio.run(_launch(child(tmp_path, said, code=1)))


def test_the_same_work_is_done_once_and_a_failure_is_told_each_time(tmp_path: Path) -> None:
    parts = asyncio.run(_works(Children([], tmp_path), tmp_path))
    assert [part is parts[0] for part in parts] == [True, True, True, False]
    assert "<svg" in parts[0]
    assert "3 runs" in parts[3]


async def _works(children: Children, folder: Path) -> list[str]:
    """The same part twice at once, again once there is more to show, and as of then."""
    at = {"results": str(folder), "root": str(folder), "base": "", "variant": "", "ends": []}
    for _ in range(2):
        with pytest.raises(NotFoundError, match="no run has a measurement yet"):
            await children.work("trend", benchmark="mission", **at)
    store = FileStore(folder, SystemClock(), note=lambda _: None)
    for i in range(2):
        measured(store, [simple(9.0 + i)], at=60 * i)
    parts = await asyncio.gather(*(children.work("trend", benchmark="mission", **at) for _ in range(2)))
    measured(store, [simple(12.0)], at=600)
    return [*parts, *[await children.work("trend", as_of, benchmark="mission", **at) for as_of in ("", "later")]]


async def _command(children: Children) -> object:
    return await children.fcctl("results", "compare")


async def _launch(children: Children) -> str | None:
    return await children.launch("run", "job")
