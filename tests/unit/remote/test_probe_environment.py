"""The environment of a step: completed where PATH lacks CUDA, cached, and the same when applied twice."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from fcctl_remote.base import programs
from fcctl_remote.probe import checks, environment, gpu
from fcctl_remote.wire import Needs
from tests.support.scripts import script

# nvidia-smi's format with an L4's figures, put together by hand.
L4_ROW = (
    "0, NVIDIA L4, GPU-7d7f6b1a-0000-1111-2222-333344445555, 00000000:00:03.0, 550.54.15, 8.9, 23034, 4, 210, 405,"
    " 2040, 6251, 72.00, 11.62, 38, 0, Enabled, 0, [N/A], Enabled, Default, 0x0000000000000001, 0x0000000000000001"
)


def nvidia_smi(folder: Path, row: str = L4_ROW, unknown: str = "") -> Path:
    """Speaks as nvidia-smi does; each call adds a line to ``calls``; ``unknown`` is a field it does not know."""
    text = f"""echo call >> "{folder}/calls"
case "$1" in
  *{unknown or "nothing-of-the-kind"}*) echo 'Field "{unknown}" is not a valid field to query.'; exit 2 ;;
  --query-gpu=*) echo '{row}' ;;
  *) echo '| NVIDIA-SMI 550.54.15   Driver Version: 550.54.15   CUDA Version: 12.4     |' ;;
esac
"""
    return script(folder / "nvidia-smi", text)


def toolkit(home: Path) -> Path:
    script(home / "bin" / "nvcc", "echo 'Cuda compilation tools, release 12.6, V12.6.85'\n")
    (home / "bin" / "nvcc.profile").touch()
    (home / "lib64").mkdir()
    return home


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    """An L4 with a toolkit that is not on PATH. (What else this machine has in /usr/local comes after CUDA_HOME.)"""
    nvidia_smi(tmp_path / "bin")
    (tmp_path / "bin" / "calls").touch()  # or the first call would change the folder
    (tmp_path / "root").mkdir()
    toolkit(tmp_path / "cuda")
    env = {"PATH": f"{tmp_path}/bin:/bin:/usr/bin", "HOME": str(tmp_path), "CUDA_HOME": f"{tmp_path}/cuda"}
    return {**env, "FCCTL_PYTHON": sys.executable}


def hide_other_nvcc(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine whose PATH folders hold no CUDA: /usr/bin may, here."""
    monkeypatch.setattr(gpu, "which", lambda name, env: None if name in ("nvcc", "ncu") else programs.which(name, env))


def test_cuda_off_path_is_found(machine: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hide_other_nvcc(monkeypatch)
    nvidia_smi(tmp_path / "bin", L4_ROW.replace("NVIDIA L4", "NVIDIA H100").replace(" 8.9,", " 9.0,"))
    found = environment.resolve_environment(machine, str(tmp_path / "root"))
    assert "CUDA_HOME" not in found  # the user's own stands
    assert found["PATH"].startswith(machine["PATH"] + f":{tmp_path}/cuda/bin")
    assert found["LD_LIBRARY_PATH"] == f"{tmp_path}/cuda/lib64"
    assert (found["FCCTL_CUDA_ARCH"], found["TORCH_CUDA_ARCH_LIST"], found["CUDAARCHS"]) == ("90", "9.0", "90")
    assert found["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert found["FCCTL_PYTHON"] == sys.executable


def test_applied_twice_changes_nothing(machine: dict[str, str], tmp_path: Path) -> None:
    once = {**machine, **environment.resolve_environment(machine, str(tmp_path / "root"))}
    twice = {**once, **environment.resolve_environment(once, str(tmp_path / "root"))}
    assert twice == once


def test_the_users_own_settings_stand(machine: dict[str, str], tmp_path: Path) -> None:
    own = {"FCCTL_CUDA_ARCH": "90a", "PYTORCH_CUDA_ALLOC_CONF": "backend:native", "LD_LIBRARY_PATH": "/mine"}
    found = environment.resolve_environment({**machine, **own}, str(tmp_path / "root"))
    assert (found["FCCTL_CUDA_ARCH"], found["TORCH_CUDA_ARCH_LIST"]) == ("90a", "9.0a")
    assert "PYTORCH_CUDA_ALLOC_CONF" not in found
    assert found["LD_LIBRARY_PATH"] == f"/mine:{tmp_path}/cuda/lib64"
    lists = {"TORCH_CUDA_ARCH_LIST": "8.0;8.9", "CUDAARCHS": "80;89"}
    listed = environment.resolve_environment({**machine, **lists}, str(tmp_path / "root"))
    assert {name: listed[name] for name in lists} == lists


def test_a_cuda_home_without_nvcc_is_replaced(machine: dict[str, str], tmp_path: Path) -> None:
    machine["PATH"] = f"{tmp_path}/cuda/bin:{machine['PATH']}"
    machine["CUDA_HOME"] = str(tmp_path / "gone")
    assert environment.resolve_environment(machine, str(tmp_path / "root"))["CUDA_HOME"] == f"{tmp_path}/cuda"


def test_nothing_nvidia_at_all(tmp_path: Path) -> None:
    facts = dict.fromkeys(("nvcc", "ncu", "nvidia_smi", "cuda_home", "python", "compute_capability"))
    found = environment.apply_facts({}, facts)
    assert found["FCCTL_CUDA_ARCH"] == "89"
    assert found["FCCTL_PYTHON"] == sys.executable
    assert "PATH" not in found
    assert "CUDA_HOME" not in found


@pytest.mark.parametrize(
    ("arch", "dotted"), [("89", "8.9"), ("120", "12.0"), ("90a", "9.0a"), ("native", "native"), ("", ""), ("8", "8")]
)
def test_dotted(arch: str, dotted: str) -> None:
    assert environment.dotted(arch) == dotted


# ------------------------------------------------------------------------------------------------ the cache
def calls(tmp_path: Path) -> int:
    return len((tmp_path / "bin" / "calls").read_text().splitlines())


def test_facts_are_kept_and_read_fast(machine: dict[str, str], tmp_path: Path) -> None:
    root = tmp_path / "root"
    first = environment.resolve_environment(machine, str(root))
    asked = calls(tmp_path)
    assert asked > 0
    times = []
    for _ in range(5):
        started = time.process_time()
        assert environment.resolve_environment(machine, str(root)) == first
        times.append(time.process_time() - started)
    assert calls(tmp_path) == asked
    assert min(times) < 0.01


def test_a_new_run_folder_on_path_does_not_void_the_facts(machine: dict[str, str], tmp_path: Path) -> None:
    root = tmp_path / "root"
    environment.resolve_environment(machine, str(root))
    asked = calls(tmp_path)
    for run in ("a", "b"):
        env = {**machine, "PATH": f"{root}/runs/{run}/bin:{machine['PATH']}"}
        assert (
            environment.resolve_environment(env, str(root))
            .get("PATH", env["PATH"])
            .startswith(f"{root}/runs/{run}/bin:")
        )
    assert calls(tmp_path) == asked


@pytest.mark.parametrize("change", ["nvcc", "smi", "path", "boot", "garbage"])
def test_facts_are_found_anew_when_something_changed(
    machine: dict[str, str], tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide_other_nvcc(monkeypatch)
    environment.resolve_environment(machine, str(tmp_path / "root"))
    asked = calls(tmp_path)
    if change == "nvcc":
        os.unlink(tmp_path / "cuda" / "bin" / "nvcc")
    elif change == "smi":
        nvidia_smi(tmp_path / "bin", L4_ROW.replace("NVIDIA L4", "NVIDIA H100").replace(" 8.9,", " 9.0,"))
    elif change == "path":
        machine["PATH"] = f"{tmp_path}/other:{machine['PATH']}"
    elif change == "boot":
        monkeypatch.setattr(environment, "boot_id", lambda: "another")
    else:
        (tmp_path / "root" / "facts.json").write_text('{"x": [')
    found = environment.resolve_environment(machine, str(tmp_path / "root"))
    assert calls(tmp_path) > asked
    assert found["FCCTL_CUDA_ARCH"] == ("90" if change == "smi" else "89")
    assert (f"{tmp_path}/cuda/bin" in found["PATH"]) is (change != "nvcc")


def test_a_failing_nvidia_smi_is_asked_again_later(
    machine: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(
        tmp_path / "bin" / "nvidia-smi", f'echo call >> "{tmp_path}/bin/calls"; echo "No devices were found"; exit 6'
    )
    environment.resolve_environment(machine, str(tmp_path / "root"))
    asked = calls(tmp_path)
    environment.resolve_environment(machine, str(tmp_path / "root"))
    assert calls(tmp_path) == asked
    later = time.time() + environment.RETRY_S + 1
    monkeypatch.setattr(environment.time, "time", lambda: later)
    environment.resolve_environment(machine, str(tmp_path / "root"))
    assert calls(tmp_path) > asked


def test_a_root_that_cannot_be_written_costs_only_time(machine: dict[str, str], tmp_path: Path) -> None:
    found = environment.resolve_environment(machine, str(tmp_path / "absent"))
    assert found["FCCTL_CUDA_ARCH"] == "89"


# ------------------------------------------------------------------------------------------------ Pythons
def venv_with_torch(folder: Path, cuda_version: str | None) -> Path:
    """A virtual environment whose torch cannot be imported: finding it must not try."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    [site] = folder.glob("lib/python3*/site-packages")
    (site / "torch").mkdir()
    (site / "torch" / "__init__.py").write_text("raise SystemExit('imported')")
    value = f"'{cuda_version}'" if cuda_version else "None"
    (site / "torch" / "version.py").write_text(f"__version__ = '2.9'\ncuda: Optional[str] = {value}\nhip = None\n")
    return folder / "bin" / "python3"


@pytest.fixture
def only_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python that runs the tests and this machine's others are no candidates: their torch may be one for CUDA."""
    monkeypatch.setattr(environment, "_FOLDERS", tuple(folder for folder in environment._FOLDERS if folder[0] == "~"))
    monkeypatch.setattr(environment, "sys", SimpleNamespace(executable="/nonexistent/python3"))


def test_a_python_with_torch_is_found_without_importing_it(tmp_path: Path, only_theirs: None) -> None:
    python = venv_with_torch(tmp_path / "venv", "12.9")
    answer = environment.ask(str(python), {"PATH": "/bin"})
    assert answer["torch"].startswith(str(tmp_path / "venv"))
    found = environment.best({"PATH": str(tmp_path / "none"), "HOME": str(tmp_path)}, want_cuda=True)
    assert (found["python"], found["torch_cuda"]) == (str(python), "12.9")
    assert any(p.endswith("site-packages") for p in found["watched"])


def test_where_there_is_a_gpu_a_torch_for_cuda_is_preferred(tmp_path: Path, only_theirs: None) -> None:
    for_cpu = venv_with_torch(tmp_path / ".venv", None)
    for_cuda = venv_with_torch(tmp_path / "venvs" / "gpu", "12.9")
    env = {"PATH": str(tmp_path / "none"), "HOME": str(tmp_path), "FCCTL_PYTHON": str(for_cpu)}
    assert environment.best(env, want_cuda=True)["python"] == str(for_cuda)
    assert environment.best(env, want_cuda=False)["python"] == str(for_cpu)


def test_broken_candidates_are_passed_over(tmp_path: Path) -> None:
    broken = script(tmp_path / "bin" / "python3", "echo nonsense; exit 0\n")
    assert environment.ask(str(broken), {}) is None
    assert environment.ask(str(tmp_path / "absent"), {}) is None
    found = environment.best({"PATH": str(tmp_path / "bin"), "HOME": str(tmp_path)}, want_cuda=False)
    assert found["python"] != str(broken)


@pytest.mark.full
def test_a_python_that_takes_its_time_is_none_the_worse(tmp_path: Path) -> None:
    slow = script(tmp_path / "bin" / "python3", f'sleep 3.2; exec "{sys.executable}" "$@"\n')
    assert environment.ask(str(slow), {"PATH": os.environ["PATH"]}) is not None


def test_candidates_are_bounded_and_distinct(tmp_path: Path) -> None:
    for i in range(60):
        script(tmp_path / "venvs" / f"e{i}" / "bin" / "python3", "exit 1\n")
    env = {"PATH": f"{tmp_path}/venvs/e1/bin:{tmp_path}/venvs/e1/bin:/bin", "HOME": str(tmp_path)}
    found = list(environment.candidates(env))
    assert len(found) == len(set(found)) <= environment.MAX_CANDIDATES
    assert found[0] == f"{tmp_path}/venvs/e1/bin/python3"


@pytest.mark.parametrize(
    "folder",
    ["miniconda3", "miniforge3/envs/k", "micromamba/envs/k", "work/.venv", ".venv", ".local/share/virtualenvs/k-Xy",
     ".cache/pypoetry/virtualenvs/k-py3.11"],
)  # fmt: skip
def test_where_conda_uv_pipenv_poetry_and_venv_put_environments(tmp_path: Path, folder: str) -> None:
    python = script(tmp_path / folder / "bin/python3", "exit 1\n")
    assert str(python) in environment.candidates({"PATH": "/nonexistent", "HOME": str(tmp_path)})


# ------------------------------------------------------------------------------------------------ programs
def test_a_program_that_hangs_is_a_finding(tmp_path: Path) -> None:
    hanging = script(tmp_path / "nvidia-smi", "trap '' TERM INT HUP; echo begun; sleep 60 & wait\nsleep 60\n")
    for limit_s in (0.3, 3.0, 30.0):
        started = time.monotonic()
        ran = programs.run([str(hanging)], limit_s)
        assert time.monotonic() - started < limit_s + 25
        if ran.out:  # it was deaf before its time was over
            break
    assert (ran.code, ran.timed_out, ran.out) == (None, True, "begun\n")
    answer = gpu.Answer(ran, [])
    assert "did not answer" in answer.complaint


def test_output_is_bounded_and_absent_programs_do_not_raise(tmp_path: Path) -> None:
    noisy = script(tmp_path / "noisy", "head -c 3000000 /dev/zero | tr '\\0' x\n")
    assert len(programs.run([str(noisy)], 20).out) == programs.MAX_OUTPUT
    assert programs.run([str(tmp_path / "absent")], 1).code is None
    assert programs.run(["bad\0name"], 1).code is None


# ------------------------------------------------------------------------------------------------ nvidia-smi
def test_fields_an_old_driver_does_not_know_are_left_out(tmp_path: Path) -> None:
    fields = L4_ROW.split(", ")
    smi = nvidia_smi(tmp_path, ", ".join(fields[:21] + fields[22:]), unknown="clocks_event_reasons.active")
    answer = gpu.query(str(smi), {"PATH": "/bin:/usr/bin"})
    found = gpu.describe(answer.rows, "12.4", {})
    assert found["compute_capability"] == "8.9"
    assert found["arch"] == "sm_89"
    assert found["memory_mb"] == 23034
    assert found["clocks"] == {"sm_mhz": 210, "mem_mhz": 405, "max_sm_mhz": 2040, "max_mem_mhz": 6251}
    assert found["power_limit_w"] == 72.0
    assert found["throttle_reasons"] == ["gpu_idle"]
    assert (found["ecc"], found["mig"]) == (True, None)
    assert len((tmp_path / "calls").read_text().splitlines()) == 2


def test_the_visible_gpu_is_described() -> None:
    rows = [{"index": "0", "uuid": "GPU-aa", "name": "A"}, {"index": "1", "uuid": "GPU-bb", "name": "B"}]
    assert gpu.chosen(rows, {})["name"] == "A"
    assert gpu.chosen(rows, {"CUDA_VISIBLE_DEVICES": "1,0"})["name"] == "B"
    assert gpu.chosen(rows, {"CUDA_VISIBLE_DEVICES": "GPU-b"})["name"] == "B"


def test_installed_gpus_are_seen_on_the_pci_bus_without_a_driver(tmp_path: Path) -> None:
    devices = {
        "0000:00:03.0": ("0x10de", "0x030200"),
        "0000:00:04.0": ("0x10de", "0x040300"),
        "1": ("0x8086", "0x030000"),
    }
    for name, (vendor, kind) in devices.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(vendor + "\n")
        (tmp_path / name / "class").write_text(kind + "\n")
    assert gpu.pci_devices(str(tmp_path)) == ["0000:00:03.0"]  # not its audio function, not an Intel one


@pytest.mark.parametrize(
    ("params", "capabilities", "expected"),
    [
        ("RmProfilingAdminOnly: 0\n", "0", "allowed"),
        ("RmProfilingAdminOnly: 1\n", "0", "restricted"),
        ("RmProfilingAdminOnly: 1\n", "00000000a80425fb", "restricted"),  # root of a plain container
        ("RmProfilingAdminOnly: 1\n", "000001ffffffffff", "allowed"),
        ("Other: 1\n", "0", "unknown"),
        (None, "0", "unknown"),
    ],
)
def test_counter_permission(tmp_path: Path, params: str | None, capabilities: str, expected: str) -> None:
    if params is not None:
        (tmp_path / "params").write_text("ResmanDebugLevel: 4294967295\n" + params)
    (tmp_path / "status").write_text(f"Name:\tsh\nCapEff:\t{capabilities}\n")
    assert gpu.counters(str(tmp_path / "params"), str(tmp_path / "status")) == expected


# ------------------------------------------------------------------------------------------------ needs
def test_needs(machine: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mytool", "c++"):
        script(tmp_path / "bin" / name, "exit 0\n")
    env = {**machine, "PATH": f"{tmp_path}/bin"}
    assert checks.check_needs(Needs(), env) is None
    assert checks.check_needs(Needs(tools=["bazel"]), env) == (
        "this machine has no bazel", "install Bazelisk as bazel: https://bazel.build/install/bazelisk"
    )  # fmt: skip
    assert checks.check_needs(Needs(gpu=True, compute_capability="8.9", tools=["mytool", "cxx"]), env) is None
    for tool, says in [("nvcc", "cuda-toolkit"), ("ncu", "Nsight Compute"), ("doxygen", "apt install doxygen")]:
        unmet = checks.check_needs(Needs(tools=["mytool", tool]), env)
        assert tool in unmet[0]
        assert says in unmet[1]
    several = checks.check_needs(Needs(tools=["doxygen", "mytool", "flex", "bazel"], compute_capability="9.0"), env)
    assert several[0].startswith("this machine has no doxygen and no flex and no bazel; the GPU has compute capability")
    told = [
        "install them: sudo apt install doxygen flex (macOS: brew install doxygen flex)",
        "install Bazelisk as bazel",
    ]
    assert [hint.partition(": https")[0] for hint in several[1].split("; ")[:2]] == told
    assert several[1].endswith("; choose a target with a newer GPU: --on NAME")
    for wanted, met in [("8.0", True), ("8.10", False), ("9.0", False), ("10.0", False), ("nine", False)]:
        assert (checks.check_needs(Needs(compute_capability=wanted), env) is None) is met


def test_needs_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_SMI", ())
    env = {"PATH": str(tmp_path)}
    monkeypatch.setattr(gpu, "visible", lambda: False)
    assert checks.check_needs(Needs(gpu=True), env) == (
        "this machine has no NVIDIA GPU",
        "choose a GPU target: --on NAME",
    )
    monkeypatch.setattr(gpu, "visible", lambda: True)
    unmet = checks.check_needs(Needs(gpu=True), env)
    assert "cannot be used" in unmet[0]


def test_needs_torch_asks_the_chosen_python(tmp_path: Path) -> None:
    python = venv_with_torch(tmp_path / "venv", None)
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    assert checks.check_needs(Needs(tools=["torch"]), {"FCCTL_PYTHON": str(python), "PATH": "/bin"}) is None
    unmet = checks.check_needs(Needs(tools=["torch"]), {"FCCTL_PYTHON": str(bare / "bin" / "python3"), "PATH": "/bin"})
    assert "no torch" in unmet[0]


def test_what_the_system_keeps_pip_out_of_gets_a_virtual_environment(tmp_path: Path) -> None:
    """A venv, as the one of these tests is, takes packages; Debian's and Ubuntu's own Python refuses them."""
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "v")], check=True)
    python = str(tmp_path / "v/bin/python3")
    assert environment.install(python, ["numpy", "psutil"], env) == f"{python} -m pip install numpy psutil"
    managed = script(tmp_path / "python3", "echo True\n")
    command = environment.install(str(managed), ["numpy"], env)
    assert command == f"{managed} -m venv --system-site-packages ~/.venv && ~/.venv/bin/pip install numpy"
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python3").symlink_to(sys.executable)
    assert str(tmp_path / ".venv/bin/python3") in environment.candidates(env)


def test_a_tool_off_path_that_a_run_would_find_is_there_for_preflight_too(tmp_path: Path) -> None:
    """An SSH command's PATH may lack the folder that Homebrew puts tmux into."""
    found = checks.tools({"PATH": str(tmp_path)})
    assert found["bash"]
    assert found["git"] is None
