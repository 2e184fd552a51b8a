"""``$FCCTL_CACHE``: what the runs of a workspace keep for each other on a machine."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

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
