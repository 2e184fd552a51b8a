"""``$FCCTL_CACHE``: what the runs of a workspace keep for each other on a machine, also builds of a torch extension."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from fcctl_remote.base import torch_builds
from tests.support.sshd import LoopbackSshd
from tests.support.workspace import Workspace

#: Two objects of two sources and what is made of both, with a copy for a compiler.
NINJA = """
builddir = {cache}
rule compile
  command = cp $in $out && echo compiled $in
rule link
  command = cat $in > $out
build {cache}/a.o: compile a.cu
build {cache}/b.o: compile b.cu
build {cache}/both.so: link {cache}/a.o {cache}/b.o
"""
JOB = """
steps:
  - id: build
    run: |
      sed "s#{cache}#$FCCTL_CACHE/build#g" build.in > build.ninja
      ninja -v
      cat "$FCCTL_CACHE/build/both.so"
"""


@pytest.fixture
def workspace(tmp_path: Path, private_home: Path, sshd: LoopbackSshd) -> Workspace:
    return Workspace(tmp_path / "w", private_home, sshd)


@pytest.mark.skipif(shutil.which("ninja") is None, reason="ninja is not installed")
def test_a_changed_kernel_does_not_rebuild_the_others(workspace: Workspace) -> None:
    workspace.job("build", JOB)
    (workspace.root / "build.in").write_text(NINJA)
    compiled = []
    for changed in (["a.cu", "b.cu"], [], ["b.cu"]):
        for name in changed:
            (workspace.root / name).write_text(f"kernel {name} {len(compiled)}\n")
        workspace.fcctl("run", "build", "--on", "box")
        log = workspace.fcctl("logs", "last", "--step", "build").stdout
        compiled.append(sorted(line.split()[-1] for line in log.splitlines() if line.startswith("compiled")))
        assert "kernel a.cu 0" in log
        assert f"kernel b.cu {2 if len(compiled) == 3 else 0}" in log
    assert compiled == [["a.cu", "b.cu"], [], ["b.cu"]]


def test_the_compilers_caches_are_in_it_and_outlive_runs_until_they_are_pruned(
    workspace: Workspace, sshd: LoopbackSshd
) -> None:
    names = "TORCH_EXTENSIONS_DIR TRITON_CACHE_DIR CCACHE_DIR"
    script = f"for n in {names}; do case ${{!n}} in $FCCTL_CACHE/*) ;; *) exit 1;; esac; done; echo x >> $FCCTL_CACHE/f"
    workspace.job("uses", f"steps:\n  - {{id: one, run: '{script}; cat $FCCTL_CACHE/f'}}\n")
    for count in (1, 2):
        workspace.fcctl("run", "uses", "--on", "box")
        assert workspace.fcctl("logs", "last", "--step", "one").stdout == "x\n" * count
    (cache,) = (sshd.home / ".fcctl/cache").iterdir()
    asked = workspace.fcctl("hosts", "prune", "--on", "box", check=2)
    assert f"{cache.name}: " in asked.stderr
    assert (cache / "f").exists()
    assert workspace.json("hosts", "prune", "--on", "box", "--yes")["deleted"]
    assert not cache.exists()
    assert "has no cache" in workspace.fcctl("hosts", "prune", "--on", "box").stderr


BUILD = """
import ctypes, os
from torch.utils.cpp_extension import load
os.makedirs(os.path.join(os.environ["TORCH_EXTENSIONS_DIR"], "two"), exist_ok=True)
made = load("two", ["a.cpp", "b.cpp"], verbose=True, extra_include_paths=[os.getcwd()], is_python_module=False)
library = ctypes.CDLL(made)
print("values", library.a(), library.b())
"""
#: As of a torch for CUDA, where this one may be for the CPU: torch writes the ninja file, nvcc compiles.
CUDA_BUILD = (
    BUILD.replace("from torch.utils.cpp_extension import load", "from torch.utils import cpp_extension")
    .replace("os.makedirs", 'home = cpp_extension.CUDA_HOME = os.environ["CUDA_HOME"]\nos.makedirs', 1)
    .replace("made = load", "cpp_extension._prepare_ldflags = lambda flags, *rest: flags\nmade = cpp_extension.load")
    .replace(".cpp", ".cu").replace("verbose=True", 'verbose=True, extra_ldflags=[f"-L{home}/lib64", "-lcudart"]')
)  # fmt: skip
NVCC = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
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
    files = {"build.py": BUILD, "a.cpp": A, "b.cpp": B, "value.h": "#define VALUE 1\n"}
    changes = (None, None, ("value.h", "#define VALUE 2\n"), ("b.cpp", B + "\n"), None)
    compiled, values = built(Workspace(tmp_path / "w", private_home, sshd), sshd, files, changes)
    assert compiled == [["a.cpp", "b.cpp"], [], ["b.cpp"], ["b.cpp"], []]
    assert values == [["1", "1"], ["1", "1"], ["1", "2"], ["1", "2"], ["1", "2"]]


@pytest.mark.full
@pytest.mark.skipif(shutil.which("ninja") is None or NVCC is None, reason="ninja or nvcc is not installed")
def test_a_changed_kernel_does_not_compile_the_others(tmp_path: Path, private_home: Path, sshd: LoopbackSshd) -> None:
    pytest.importorskip("torch")
    kernel = "__global__ void k(float *x) { *x = VALUE; }\n"
    a, b = (kernel.replace("k(", name + "_k(") + text for name, text in (("a", A), ("b", B.partition("\n")[2])))
    files = {"build.py": CUDA_BUILD, "a.cu": "#define VALUE 1\n" + a, "b.cu": "#define VALUE 1\n" + b}
    changes = (None, ("b.cu", "#define VALUE 2\n" + b), None)
    compiled, values = built(Workspace(tmp_path / "w", private_home, sshd), sshd, files, changes)
    assert compiled == [["a.cu", "b.cu"], ["b.cu"], []]
    assert values == [["1", "1"], ["1", "2"], ["1", "2"]]


def built(
    workspace: Workspace, sshd: LoopbackSshd, files: dict[str, str], changes: Sequence[tuple[str, str] | None]
) -> tuple[list[list[str]], list[list[str]]]:
    """Of a run after each of the changes, the sources that it compiled, and what their functions return."""
    workspace.job("build", f"steps:\n  - {{id: build, run: '{sys.executable} build.py', timeout: 15m}}\n")
    for name, text in files.items():
        write(workspace.root / name, text)
    long_ago = time.time() - 10**6  # as of a computer whose clock is behind, or of an edit during a build
    compiled, values = [], []
    for change in changes:
        if change is not None:
            write(workspace.root / change[0], change[1], long_ago)
        workspace.fcctl("run", "build", "--on", "box")
        log = workspace.fcctl("logs", "last", "--step", "build").stdout
        compiled.append([name for name in files if f" -c {_link(sshd)}/{name} " in log])
        values.append(log[log.rindex("values") :].split()[1:3])
    return compiled, values


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
