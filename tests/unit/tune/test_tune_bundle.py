"""The search's libraries as one file: the same from the same, no compiled code, for the Pythons that can run it."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from fcctl_remote.base.bundles import CONTENTS
from fcctl_remote.base.tree import path_fault
from orchestrator.base.errors import ConfigError, NotFoundError
from orchestrator.base.installation import to_install
from orchestrator.tune import bundle as tune_bundle
from orchestrator.tune.bundle import TuneBundles

pytest.importorskip("distributed")


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """One package is enough where it is not about which."""
    monkeypatch.setattr(tune_bundle, "_closure", lambda: [metadata.distribution("zict")])


def test_what_is_in_it(tmp_path: Path) -> None:
    path = TuneBundles(tmp_path).tune().path
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
        contents = json.loads(archive.read(CONTENTS))
        for name, digest in contents["files"].items():
            assert hashlib.sha256(archive.read(name)).hexdigest() == digest
    assert names == {*contents["files"], CONTENTS}
    assert not [name for name in names if path_fault(name) or name.endswith((".so", ".pyd", ".pyc"))]
    for package in ("optuna", "distributed", "dask", "tornado", "msgpack", "yaml", "fcctl_remote", "fcctl_tune"):
        assert f"{package}/__init__.py" in names
    assert not [name for name in names if name.split("/")[0] in ("numpy", "psutil", "sqlalchemy", "orchestrator")]
    assert (contents["modules"], contents["python"].split(".")[0]) == (["numpy", "psutil"], "3")
    assert path.stat().st_size < 8e6


def test_the_same_libraries_make_the_same_file_and_it_is_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small(monkeypatch)
    first, second = TuneBundles(tmp_path / "a").tune(), TuneBundles(tmp_path / "b").tune()
    assert first.path.read_bytes() == second.path.read_bytes()
    assert first.sha256 == hashlib.sha256(first.path.read_bytes()).hexdigest() == first.path.stem[-64:]
    monkeypatch.setattr(tune_bundle, "_archive", lambda *_: pytest.fail("it is there"))
    assert TuneBundles(tmp_path / "a").tune() == first == TuneBundles(tmp_path / "a").find(first.sha256)


def test_a_damaged_file_is_made_anew_and_never_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    store = TuneBundles(tmp_path)
    bundle = store.tune()
    bundle.path.write_bytes(bundle.path.read_bytes()[:-1])
    with pytest.raises(NotFoundError):
        store.find(bundle.sha256)
    assert store.tune() == bundle
    assert store.find(bundle.sha256) == bundle


def test_the_ones_used_last_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    store = TuneBundles(tmp_path)
    mine = store.tune()
    os.utime(mine.path, (1, 1))
    for n in range(tune_bundle.KEPT):
        (tmp_path / f"other{n}.zip").touch()
        os.utime(tmp_path / f"other{n}.zip", (n, n))
    assert store.tune() == mine, "which is a use of it"
    monkeypatch.setattr(tune_bundle, "_identity", lambda *_: "another")
    (tmp_path / "vanished.zip").symlink_to(tmp_path / "nothing")
    another = store.tune()
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {mine.path.name, another.path.name, "other2.zip", "other3.zip"}


def test_where_the_extra_is_not_installed_the_error_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tune_bundle, "ROOTS", ("optuna-that-is-not-here",))
    monkeypatch.setitem(sys.modules, "packaging.requirements", None)  # it comes with the extra
    with pytest.raises(ConfigError) as caught:
        TuneBundles(tmp_path).tune()
    assert caught.value.hint == to_install("tune")


class Package:
    """What importlib.metadata says of a package."""

    def __init__(self, name: str, python: str, *requires: str) -> None:
        self.name, self.version, self.requires = name, "1", list(requires)
        self.metadata = type("Metadata", (), {"json": {"requires_python": python}})()


def test_the_least_python_is_the_newest_that_a_package_asks_for() -> None:
    def least(*packages: Package) -> tuple[int, str]:
        return tune_bundle._least_python(packages)  # type: ignore[arg-type]

    assert least(Package("a", ">=3.8")) == (9, "fcctl")
    assert least(Package("a", ">=3.10"), Package("b", ">=3.12"), Package("c", "")) == (12, "b 1")
    # Needed before 3.11 and not installed here, so not in the bundle.
    early = Package("a", ">=3.9", 'tomli; python_version < "3.11"')
    assert least(early) == (11, "a 1 needs tomli, which is not installed here")
    assert least(early, Package("tomli", "")) == (9, "fcctl")
    assert least(Package("a", "", "numpy", 'colorama; sys_platform == "win32"', 'x; extra == "y"')) == (9, "fcctl")
