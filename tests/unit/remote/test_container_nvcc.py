"""nvcc in a container: what is mounted, and a real compile through a stand-in for docker that checks its arguments."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fcctl_remote import wire
from fcctl_remote.base.layout import Layout
from fcctl_remote.probe import docker
from fcctl_remote.probe.checks import check_needs
from fcctl_remote.run import environment

ROOT = Path(__file__).resolve().parents[3]
IMAGE = "nvidia/cuda:12.9.1-devel-ubuntu24.04"
NVCC = shutil.which("nvcc")
#: A container runtime that has one image, and runs its nvcc in a shell that sees only what was mounted to be written.
DOCKER = """#!{python}
import os, sys
IMAGE, NVCC = "{image}", {nvcc!r}
words = sys.argv[1:]
if words[:2] == ["image", "inspect"]:
    sys.exit(0 if words[2] == IMAGE else 1)
assert words[0] == "run", words
here, after = words[1 : words.index(IMAGE)], words[words.index(IMAGE) + 1 :]
for option in (["--rm"], ["--network", "none"], ["--pull", "never"], ["--entrypoint", "nvcc"]):
    assert any(here[i : i + len(option)] == option for i in range(len(here))), (option, here)
mounts = [here[i + 1] for i, word in enumerate(here) if word == "--volume"]
assert here[here.index("--user") + 1] == f"{{os.getuid()}}:{{os.getgid()}}"
folder = here[here.index("--workdir") + 1]
assert f"{{folder}}:{{folder}}" in mounts, mounts
os.chdir(folder)
environment = {{name: os.environ[name] for name in ("NVCC_APPEND_FLAGS",) if name in here}}
os.execve(NVCC, [NVCC, *after], {{"PATH": "/usr/bin:/bin", **environment}})
"""


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """A PATH with docker and no nvcc, and a run's folder."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    docker = bin_folder / "docker"
    docker.write_text(DOCKER.format(python=sys.executable, image=IMAGE, nvcc=NVCC))
    docker.chmod(0o755)
    for name in ("sh", "dirname"):
        (bin_folder / name).symlink_to(shutil.which(name) or name)
    return bin_folder, tmp_path / "root"


def step_environment(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, image: str = IMAGE
) -> tuple[dict[str, str], list[str]]:
    """What a step's environment is on a computer without a CUDA toolkit, and the run's warnings."""
    bin_folder, root = folders
    warnings: list[str] = []
    monkeypatch.setattr(environment, "resolve_environment", lambda *_: {})
    monkeypatch.setattr(environment, "of_submission", lambda: {"PATH": str(bin_folder)})
    layout = Layout(str(root))
    run = layout.run("20261125t120000z-compile-l4-abcdef")
    Path(run.folder).mkdir(parents=True)
    plan = wire.RunPlan(run.run_id, "compile", "controller", "w", "0" * 64, [], env={docker.IMAGE: image})
    runner = [sys.executable, "-m", "fcctl_remote"]
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "remote"))
    return environment.for_run(layout, run, plan, runner, warnings.append), warnings


@pytest.mark.skipif(NVCC is None, reason="there is no nvcc for the container")
def test_a_kernel_is_compiled_with_the_same_flags_and_figures(
    folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env, warnings = step_environment(folders, monkeypatch)
    assert check_needs(wire.Needs(tools=["nvcc"]), env) is None
    assert warnings == [f"this computer has no nvcc; nvcc of {IMAGE} runs in a container (docker)"]
    source, built = tmp_path / "source of mine", tmp_path / "built"
    source.mkdir()
    built.mkdir()
    (source / "axpy.cu").write_text("__global__ void axpy(float *y, float a) { y[threadIdx.x] += a; }\n")
    argv = ["nvcc", "-arch=sm_89", "-cubin", "-o", str(built / "axpy.cubin"), "axpy.cu"]
    env.update(PYTHONPATH=str(ROOT / "remote"), NVCC_APPEND_FLAGS="-Xptxas=-v")
    shell = functools.partial(subprocess.run, cwd=source, env=env, capture_output=True, text=True, check=False)
    done = shell(["sh", "-c", '"$@"', "sh", *argv])
    assert done.returncode == 0, done.stderr
    assert "Used" in done.stderr, "ptxas's figures"
    assert (built / "axpy.cubin").read_bytes()[:4] == b"\x7fELF"
    (source / "axpy.cu").write_text("__global__ void axpy(\n")
    failed = shell(["sh", "-c", '"$@"', "sh", *argv])
    assert failed.returncode != 0
    assert "axpy.cu" in failed.stderr


def test_without_the_image_one_line_says_how_to_get_it(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    env, warnings = step_environment(folders, monkeypatch, "nvidia/cuda:other")
    reason, hint = check_needs(wire.Needs(tools=["nvcc"]), env) or ("", "")
    assert (reason, warnings) == ("this machine has no nvcc", [])
    assert hint == "start docker if it is not running, then: docker pull nvidia/cuda:other"
    (folders[0] / "docker").unlink()
    assert "install the CUDA toolkit, or Docker" in (check_needs(wire.Needs(tools=["nvcc"]), env) or ("", ""))[1]


def test_only_folders_that_the_arguments_name_are_mounted(tmp_path: Path) -> None:
    for name in ("work/sub", "out", "include", "run"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "include/a.h").write_text("")
    work = tmp_path / "work"
    arguments = [
        "-o", f"{tmp_path}/out/a.so", f"-I{tmp_path}/include", "-include", f"{tmp_path}/include/a.h",
        f"{work}/sub/a.cu",
        "-I/usr/include", "-DX=a/b", "relative/a.cu", "-Xcompiler", "-I/nowhere", "/",
    ]  # fmt: skip
    env = {"FCCTL_RUN_DIR": str(tmp_path / "run"), "NVCC_APPEND_FLAGS": "-g", "HOME": "/root"}
    argv = docker.nvcc_command("/bin/podman", IMAGE, arguments, env, str(work))
    mounts = [argv[i + 1] for i, word in enumerate(argv) if word == "--volume"]
    written = [f"{tmp_path}/{name}:{tmp_path}/{name}" for name in ("out", "run", "work")]
    assert mounts == [*written, f"{tmp_path}/include:{tmp_path}/include:ro"]
    assert argv[argv.index(IMAGE) + 1 :] == arguments
    assert "--userns=keep-id" in argv
    assert [argv[i + 1] for i, word in enumerate(argv) if word == "--env"] == ["NVCC_APPEND_FLAGS"]
