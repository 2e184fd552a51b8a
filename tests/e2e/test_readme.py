"""The README as a new user meets it: its commands are typed, its files are read by the real parsers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from orchestrator.cli.main import VERBS
from orchestrator.machines.targets import SshTarget
from orchestrator.workspace.workspace import find_workspace
from tests.support.scripts import launcher
from tests.support.sshd import LoopbackSshd
from tests.support.workspace import REPOSITORY

README = (REPOSITORY / "README.md").read_text()
NVCC = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
CUDA = """\
#include <cstdio>
#include <cstring>
__global__ void softmax(const float *in, float *out, int n) {
  float top = in[0], sum = 0;
  for (int i = 1; i < n; i++) top = fmaxf(top, in[i]);
  for (int i = 0; i < n; i++) sum += __expf(in[i] - top);
  if (threadIdx.x < n) out[threadIdx.x] = __expf(in[threadIdx.x] - top) / sum;
}
int main(int argc, char **argv) {
  if (argc < 2 || std::strcmp(argv[1], "--check")) return 2;
  return std::puts("ok") < 0;
}
"""
#: What a machine without nvcc builds in its place: the same main, no kernel.
PLAIN = "#include <cstdio>\n#include <cstring>\n" + CUDA[CUDA.index("int main") :]


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def block(kind: str, holding: str) -> str:
    """The one block of a kind that has these words."""
    (found,) = [text for text in blocks(kind) if holding in text]
    return found


def commands(block: str) -> list[str]:
    return [line[2:].split("  #")[0].strip() for line in block.splitlines() if line.startswith("$ ")]


@pytest.fixture
def gpu_box(sshd: LoopbackSshd, private_home: Path) -> LoopbackSshd:
    """A machine that ~/.ssh/config calls gpu-box."""
    (private_home / ".ssh").mkdir(mode=0o700)
    alias = sshd.ssh_config.read_text().replace("Host box\n", "Host gpu-box\n")
    (private_home / ".ssh/config").write_text(alias)
    return sshd


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    """my-kernels: a Makefile and a .cu file, as a stranger's repository has them."""
    folder = tmp_path / "my-kernels"
    folder.mkdir()
    (folder / "softmax.cu").write_text(CUDA if NVCC else PLAIN)
    compiler = "nvcc" if NVCC else "c++ -x c++"
    (folder / "Makefile").write_text(
        f"all: softmax\nsoftmax: softmax.cu\n\t{compiler} -o $@ $<\ntest: softmax\n\t./softmax --check\n"
    )
    return folder


@pytest.fixture
def typed(private_home: Path) -> dict[str, str]:
    """An environment whose PATH has fcctl, as after an installation."""
    folder = launcher(private_home.parent / "bin").parent
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "COLUMNS": "80"}


def test_the_first_two_commands_are_the_makefiles() -> None:
    assert commands(blocks("console")[0]) == ["make demo", "make test"]
    for target, wanted in (("demo", "fcctl run phase0 --on sandbox"), ("test", "-m pytest")):
        done = subprocess.run(["make", "-n", target], cwd=REPOSITORY, capture_output=True, text=True, check=True)
        assert wanted in done.stdout


@pytest.mark.full
def test_every_command_of_the_readme_works_as_it_stands(
    gpu_box: LoopbackSshd, kernels: Path, typed: dict[str, str]
) -> None:
    lines = commands(block("console", "cd my-kernels"))
    assert lines[0] == "cd my-kernels"
    assert len(lines) == 5, "a new command of the README needs a line here"
    lines.append(next(line for line in commands(block("console", "results report")) if "report" in line))
    shown: dict[str, str] = {}
    for line in lines[1:]:
        done = subprocess.run(
            ["bash", "-c", line], cwd=kernels, env=typed, capture_output=True, text=True, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        allowed = (0, 1) if line == "fcctl preflight" else (0,)  # 1: warnings, as on a machine that has no GPU
        assert done.returncode in allowed, f"$ {line}\n{done.stdout}\n{done.stderr}"
        shown[line] = done.stdout
    assert "GPU Hardware ---" in shown["fcctl preflight"]
    assert "first on gpu  ✓ passed" in shown["fcctl run first"]
    assert shown["fcctl results show"] == shown["fcctl run first"]
    assert "<html" in (kernels / "report.html").read_text()
    (run,) = (kernels / "results/runs").glob("*-first-gpu-*")
    assert f"Results  results/runs/{run.name}" in shown["fcctl run first"], "where the README says they are"
    assert (gpu_box.home / ".fcctl/runs" / run.name / "outcome.json").is_file(), "it ran at the far side"
    assert ("build", "✓") in {tuple(row.split()[:2]) for row in shown["fcctl run first"].splitlines()}


def test_the_configuration_and_the_job_are_valid(tmp_path: Path) -> None:
    toml, (yaml,) = block("toml", "gpu-box"), blocks("yaml")
    (tmp_path / "jobs").mkdir()
    (tmp_path / "fcctl.toml").write_text(toml)
    (tmp_path / "jobs/first.yaml").write_text(yaml)
    workspace = find_workspace(tmp_path, environ={"XDG_CONFIG_HOME": "/nowhere"})
    target = workspace.target(None)
    assert isinstance(target, SshTarget)
    assert target.host == "gpu-box"
    job = workspace.jobs.get("first")
    assert [step.id for step in job.steps] == ["build", "test"]
    assert len(job.steps[0].gates) == 2


def test_the_cloud_s_configuration_is_valid_and_its_price_is_known(tmp_path: Path, typed: dict[str, str]) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/first.yaml").write_text(blocks("yaml")[0])
    (tmp_path / "fcctl.toml").write_text('[project]\nname = "x"\n' + block("toml", 'kind = "gcp"'))
    (line,) = [line for line in commands(block("console", "hosts audit")) if "cost plan" in line]
    done = subprocess.run(line.split(), cwd=tmp_path, env=typed, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "$" in done.stdout


def test_the_targets_and_jobs_that_are_named_are_those_of_its_files() -> None:
    targets = {*re.findall(r"^\[targets\.(\S+)\]", README, re.MULTILINE), "sandbox"}
    assert set(re.findall(r"--on (\S+?)`? ", README)) <= targets
    outside = README.partition("## Your own kernels")[2]
    assert set(re.findall(r"fcctl (?:run|cost plan) (\S+)", outside)) == {"first"}


@pytest.mark.full
@pytest.mark.skipif(NVCC is None, reason="the README's job compiles with nvcc")
def test_the_job_of_the_readme_passes(kernels: Path, typed: dict[str, str]) -> None:
    (kernels / "fcctl.toml").write_text(block("toml", "gpu-box"))
    (kernels / "jobs").mkdir()
    (kernels / "jobs/first.yaml").write_text(blocks("yaml")[0])
    for line in ("fcctl jobs validate first", "fcctl run first --on local"):
        done = subprocess.run(line.split(), cwd=kernels, env=typed, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "gates 2/2" in done.stdout
    assert "softmax" in done.stdout, "the kernel and its registers"


def test_commands_and_links_that_are_named_exist() -> None:
    for verb in re.findall(r"(?:`|^\$ )fcctl ([a-z-]+)", README, flags=re.MULTILINE):
        assert verb in VERBS, verb
    for page in (README, (REPOSITORY / "AGENTS.md").read_text()):
        for link in re.findall(r"\]\(([^)#:]+)\)", page):
            assert (REPOSITORY / link).exists(), link
