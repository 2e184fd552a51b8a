"""Libraries on the host: whole or absent, unpacked once, mended when damaged, removed when old and unused."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import sys
import time
import zipfile
from pathlib import Path

import pytest

from fcctl_remote import wire
from fcctl_remote.agent.calls import Calls
from fcctl_remote.base import bundles
from fcctl_remote.base.bundles import CONTENTS, Bundles
from fcctl_remote.base.layout import Layout
from fcctl_remote.run import environment
from fcctl_remote.wire import Refusal


def bundle(files: dict[str, str], **more: object) -> tuple[bytes, str]:
    listed = {name: hashlib.sha256(content.encode()).hexdigest() for name, content in files.items()}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(CONTENTS, json.dumps({"files": listed, "python": "3.8", "modules": ["json"], **more}))
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue(), hashlib.sha256(buffer.getvalue()).hexdigest()


def keep(layout: Layout, name: str) -> str:
    content, digest = bundle({"lib/__init__.py": f"NAME = {name!r}\n"})
    assert Bundles(layout).take(digest, len(content), 0, content) == wire.BundleState(True, len(content))
    return digest


def test_pieces_make_a_whole_and_a_repeated_one_changes_nothing(layout: Layout) -> None:
    content, digest = bundle({"lib/__init__.py": "NAME = 1\n"})
    size, store = len(content), Bundles(layout)
    assert store.take(digest, size, 0, b"") == wire.BundleState(False, 0)
    assert store.take(digest, size, 0, content[:100]) == wire.BundleState(False, 100)
    assert store.take(digest, size, 0, content[:100]) == wire.BundleState(False, 100)  # its reply was lost
    assert store.take(digest, size, 300, content[300:]) == wire.BundleState(False, 100)  # a gap
    assert not store.here(digest)
    with pytest.raises(Refusal, match="does not have the libraries"), store.in_use(digest):
        pass
    assert store.take(digest, size, 100, content[100:]) == wire.BundleState(True, size)
    with store.in_use(digest) as folder:
        assert (Path(folder) / "lib/__init__.py").read_text() == "NAME = 1\n"


def test_what_is_not_as_announced_is_thrown_away(layout: Layout) -> None:
    content, digest = bundle({"lib.py": ""})
    other = content[:-1] + b"x"
    with pytest.raises(Refusal, match="damaged") as caught:
        Bundles(layout).take(digest, len(content), 0, other)
    assert caught.value.error.code == "bundle_mismatch"
    assert Bundles(layout).take(digest, len(content), 0, b"") == wire.BundleState(False, 0)


@pytest.mark.parametrize("name", ["../out.py", "/etc/out.py", "a/../../out.py"])
def test_nothing_is_unpacked_outside(layout: Layout, name: str) -> None:
    content, digest = bundle({name: "x"})
    Bundles(layout).take(digest, len(content), 0, content)
    with pytest.raises(Refusal, match="is not allowed"), Bundles(layout).in_use(digest):
        pass
    assert not list(Path(layout.root).parent.rglob("out.py"))


def test_a_damaged_folder_is_unpacked_anew_and_compiled_files_may_lie_there(layout: Layout) -> None:
    digest = keep(layout, "one")
    with Bundles(layout).in_use(digest) as folder:
        source = Path(folder) / "lib/__init__.py"
        (source.parent / "__pycache__").mkdir()
    with Bundles(layout).in_use(digest):
        assert (source.parent / "__pycache__").is_dir()
    source.write_text("NAME = 'tampered'\n")
    with Bundles(layout).in_use(digest):
        assert source.read_text() == "NAME = 'one'\n"
    (Path(folder) / CONTENTS).unlink()
    with Bundles(layout).in_use(digest):
        assert source.is_file()


def test_old_ones_go_but_none_that_is_used(layout: Layout) -> None:
    digests = [keep(layout, name) for name in "abcdef"]
    folder = Path(layout.bundles)
    for age, digest in enumerate(digests):
        when = time.time() - (10 - age) * 86400
        os.utime(folder / f"{digest}.zip", (when, when))
    with Bundles(layout).in_use(digests[0]):
        os.utime(folder / f"{digests[0]}.zip", (1.0, 1.0))
        bundles.tidy(layout)
    assert {path.stem for path in folder.glob("*.zip")} == {digests[0], *digests[3:]}
    assert {path.stem for path in folder.glob("*.d")} == {digests[0]}


@pytest.mark.parametrize("params", [{"sha256": "../x"}, {"sha256": "a" * 64, "size": -1}, {"sha256": 5}])
def test_a_call_that_makes_no_sense_is_refused(layout: Layout, params: dict[str, object]) -> None:
    with pytest.raises(Refusal):
        Calls(layout, [], "").bundle({"size": 1, "offset": 0, **params}, b"")


def furnished(layout: Layout, digest: str, env: dict[str, str]) -> tuple[str, str] | None:
    run = layout.run("20261121t081530z-tune-local-3fa9c1")
    with contextlib.ExitStack() as held:
        return environment.furnish_search(held, layout, run.step("tune"), wire.Tuning('{"tune": "x"}', digest), env)


def test_a_step_finds_what_it_searches_with(layout: Layout) -> None:
    digest = keep(layout, "one")
    env = {**os.environ, "PYTHONPATH": "kernels"}
    assert furnished(layout, digest, env) is None
    folder = os.path.join(layout.bundles, digest + ".d")
    assert (env["FCCTL_TUNE"], env["PYTHONPATH"]) == (folder, folder + ":kernels")
    assert os.access(env["FCCTL_TUNE_PYTHON"], os.X_OK)
    assert json.loads(Path(env["FCCTL_TUNE_SPEC"]).read_text()) == {"tune": "x"}


def test_a_machine_without_such_a_python_is_told_what_to_install(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, digest = bundle({"lib.py": ""}, python="3.8", modules=["json", "no_such_module"])
    Bundles(layout).take(digest, len(content), 0, content)
    env = dict(os.environ)
    monkeypatch.setattr(environment.environment, "candidates", lambda _env: iter([sys.executable]))
    lacking = furnished(layout, digest, env)
    message, hint = lacking
    assert f"{sys.executable} has no no_such_module" in message
    assert hint.endswith(("-m pip install json no_such_module", "/.venv/bin/pip install json no_such_module"))
    assert "FCCTL_TUNE" not in env

    content, digest = bundle({"lib.py": ""}, python="3.99", python_for="dask 1")
    Bundles(layout).take(digest, len(content), 0, content)
    lacking = furnished(layout, digest, env)
    assert lacking is not None
    assert "which needs 3.99 or later (dask 1) with json" in lacking[0]
    assert "is Python 3." in lacking[0]


def test_a_bundle_that_is_not_there_is_told(layout: Layout) -> None:
    lacking = furnished(layout, "a" * 64, {})
    assert lacking == ("the machine does not have the libraries of this step", "start the job again")
    assert bundles.contents(layout.root) == {}
