"""A torch extension over several runs: real torch, real ninja, a real compiler."""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

import pytest

from fcctl_remote.base import torch_builds
from tests.support.sshd import LoopbackSshd
from tests.support.workspace import Workspace

BUILD = """
import ctypes, os
from torch.utils.cpp_extension import load
os.makedirs(os.path.join(os.environ["TORCH_EXTENSIONS_DIR"], "two"), exist_ok=True)
made = load("two", ["a.cpp", "b.cpp"], verbose=True, extra_include_paths=[os.getcwd()], is_python_module=False)
library = ctypes.CDLL(made)
print("values", library.a(), library.b())
"""
A = 'extern "C" int a() { return 1; }\n'
B = '#include "value.h"\nextern "C" int b() { return VALUE; }\n'


def write(path: Path, text: str, at: float | None = None) -> None:
    path.write_text(text)
    if at is not None:
        os.utime(path, (at, at))


@pytest.mark.full
@pytest.mark.skipif(shutil.which("ninja") is None, reason="ninja is not installed")
def test_only_what_changed_is_compiled(tmp_path: Path, private_home: Path, sshd: LoopbackSshd) -> None:
    pytest.importorskip("torch")
    workspace = Workspace(tmp_path / "w", private_home, sshd)
    run = f"{sys.executable} build.py"
    workspace.job("build", f"steps:\n  - {{id: build, run: '{run}', timeout: 15m}}\n")
    write(workspace.root / "build.py", BUILD)
    write(workspace.root / "a.cpp", A)
    write(workspace.root / "b.cpp", B)
    write(workspace.root / "value.h", "#define VALUE 1\n")
    long_ago = time.time() - 10**6  # as of a computer whose clock is behind, or of an edit during a build
    compiled, values = [], []
    for change in (None, None, ("value.h", "#define VALUE 2\n"), ("b.cpp", B + "\n"), None):
        if change is not None:
            write(workspace.root / change[0], change[1], long_ago)
        workspace.fcctl("run", "build", "--on", "box")
        log = workspace.fcctl("logs", "last", "--step", "build").stdout
        compiled.append([name for name in ("a.cpp", "b.cpp") if f" -c {_link(sshd)}/{name} " in log])
        values.append(log[log.rindex("values") :].split()[1:3])
    assert compiled == [["a.cpp", "b.cpp"], [], ["b.cpp"], ["b.cpp"], []]
    assert values == [["1", "1"], ["1", "1"], ["1", "2"], ["1", "2"], ["1", "2"]]


def _link(sshd: LoopbackSshd) -> Path:
    (cache,) = (sshd.home / ".fcctl/cache").iterdir()
    return cache.resolve() / "torch_extensions/two" / torch_builds.LINK


def test_a_file_has_the_time_of_its_last_change(tmp_path: Path) -> None:
    build, first, second = (tmp_path / name for name in ("build", "run1", "run2"))
    for folder in (build, first, second):
        folder.mkdir()
    times = []
    for source, text in ((first, "one"), (second, "one"), (second, "two")):
        write(source / "a.cpp", text, 1000.0)
        (build / "build.ninja").write_text(f"build a.o: compile {source}/a.cpp\n")
        torch_builds.prepare(str(build), str(source))
        times.append((source / "a.cpp").stat().st_mtime_ns)
        assert (build / "build.ninja").read_text() == f"build a.o: compile {build}/fcctl-source/a.cpp\n"
        assert (build / "fcctl-source").resolve() == source
        (build / "a.o").write_text("built")
        os.utime(build / "a.o", ns=(2**61, 2**61) if text == "one" else (0, 0))  # by a clock that was ahead
    assert times[0] == times[1]
    assert times[2] > 2**61


def test_a_build_of_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "build.ninja").write_text("build a.o: compile /elsewhere/a.cpp\n")
    torch_builds.prepare(str(tmp_path), "/runs/x/src")
    assert [path.name for path in tmp_path.iterdir()] == ["build.ninja"]
