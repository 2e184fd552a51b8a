"""What preflight finds, says and returns."""

from __future__ import annotations

import copy
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from fcctl_remote.agent.calls import Calls
from fcctl_remote.base import hostfacts
from fcctl_remote.base.hostfacts import driver_models
from fcctl_remote.base.layout import Layout
from fcctl_remote.probe import checks, document
from tests.support.scripts import script

#: What the probe of an L4 in order is expected to find; put together by hand, not recorded on one.
L4: dict[str, Any] = {
    "gpu": {
        "present": True, "name": "NVIDIA L4", "count": 1, "compute_capability": "8.9", "arch": "sm_89",
        "memory_mb": 23034, "memory_used_mb": 4, "driver": "580.95.05", "cuda_version": "13.0", "utilization_pct": 0,
        "clocks": {"sm_mhz": 210, "mem_mhz": 405, "max_sm_mhz": 2040, "max_mem_mhz": 6251}, "power_limit_w": 72.0,
        "ecc": True, "ecc_uncorrected": 0, "mig": None, "throttle_reasons": ["gpu_idle"],
        "installed": ["0000:00:03.0", "/dev/nvidia0"], "complaint": None,
    },
    "cuda": {"home": "/usr/local/cuda", "nvcc": "/usr/local/cuda/bin/nvcc", "version": "12.9", "on_path": True},
    "ncu": {"path": "/usr/local/cuda/bin/ncu", "version": "2025.2.1.0", "counters": "allowed"},
    "torch": {
        "python": "/opt/conda/bin/python3", "version": "2.9.0+cu129", "cuda_version": "12.9", "cuda_available": True,
        "device": "NVIDIA L4", "capability": "8.9", "archs": ["sm_80", "sm_86", "sm_90"],
    },
    "compiler": {"cxx": "/usr/bin/c++", "version": "c++ 11.4.0"},
    "tools": {"bash": "/bin/bash", "tmux": "/usr/bin/tmux", "rsync": "/usr/bin/rsync", "git": "/usr/bin/git"},
    "cpu": {"model": "Xeon", "cores": 4, "memory_mb": 16000},
    "disk": {"path": "/home/user", "free_mb": 50_000, "total_mb": 100_000},
    "env": {},
    "resolved_env": {"FCCTL_CUDA_ARCH": "89", "FCCTL_PYTHON": "/opt/conda/bin/python3"},
}  # fmt: skip


def judged(changes: dict[str, Any], expect: str = "gpu") -> tuple[dict[str, str], dict[str, Any]]:
    """Statuses by id, and the summary, of the L4 with some facts changed (``{"gpu.mig": True}``)."""
    facts = copy.deepcopy(L4)
    for path, value in changes.items():
        *parents, last = path.split(".", 1) if path.count(".") else (path,)
        node = facts
        for parent in parents:
            node = node[parent]
        node[last] = value
    items = checks.judge(facts, expect)
    for item in items:
        assert item["section"] in checks.SECTIONS
        if item["status"] in ("warn", "fail"):
            assert item["hint"], f"{item['id']} has no fix"
    return {str(i["id"]): str(i["status"]) for i in items}, checks.summary(items)


def test_an_l4_in_order_passes() -> None:
    statuses, summary = judged({})
    assert summary["status"] == "pass", statuses
    assert (summary["warnings"], summary["errors"]) == (0, 0)
    assert statuses["gpu.arch"] == "pass"


@pytest.mark.parametrize(
    ("changes", "name", "status"),
    [
        ({"gpu.name": "NVIDIA H100 80GB HBM3", "gpu.compute_capability": "9.0"}, "gpu.arch", "info"),
        ({"gpu.name": "Tesla T4", "gpu.compute_capability": "7.5"}, "gpu.arch", "warn"),
        ({"gpu.memory_mb": 11000}, "gpu.arch", "warn"),
        ({"gpu.throttle_reasons": ["sw_power_cap", "hw_thermal"]}, "gpu.clocks", "warn"),
        ({"gpu.throttle_reasons": None}, "gpu.clocks", "pass"),
        ({"gpu.ecc_uncorrected": 3}, "gpu.ecc", "fail"),
        ({"gpu.mig": True}, "gpu.mig", "warn"),
        ({"gpu.utilization_pct": 97}, "gpu.busy", "warn"),
        ({"cuda.nvcc": None, "cuda.version": None}, "cuda.nvcc", "fail"),
        ({"cuda.version": None}, "cuda.nvcc", "fail"),
        ({"cuda.version": "12.1"}, "cuda.nvcc", "warn"),
        ({"cuda.version": "12.10"}, "cuda.nvcc", "pass"),
        ({"cuda.on_path": False}, "cuda.path", "info"),
        ({"gpu.cuda_version": "12.4"}, "cuda.driver", "warn"),
        ({"gpu.cuda_version": "11.8"}, "cuda.driver", "fail"),
        ({"ncu.path": None}, "ncu.path", "warn"),
        ({"ncu.version": None}, "ncu.path", "warn"),
        ({"ncu.counters": "restricted"}, "ncu.counters", "warn"),
        ({"ncu.counters": "unknown"}, "ncu.counters", "info"),
        ({"torch.version": None}, "torch.import", "warn"),
        ({"torch.error": "ImportError: libcudnn.so.9"}, "torch.import", "warn"),
        ({"torch.cuda_available": False, "torch.cuda_version": None}, "torch.cuda", "warn"),
        ({"torch.cuda_available": False, "torch.why": "driver too old"}, "torch.cuda", "fail"),
        ({"torch.archs": ["sm_90", "sm_100"]}, "torch.arch", "warn"),
        ({"tools": {"bash": "/bin/bash", "tmux": None, "rsync": None, "git": None}}, "tools.tmux", "fail"),
        ({"tools": {"bash": "/bin/bash", "tmux": None, "rsync": None, "git": None}}, "tools.rsync", "warn"),
        ({"compiler.cxx": None}, "tools.cxx", "fail"),
        ({"disk.free_mb": 3000}, "disk.free", "warn"),
        ({"disk.free_mb": 100}, "disk.free", "fail"),
        ({"env": {"CUDA_HOME": "/gone"}, "resolved_env.CUDA_HOME": "/usr/local/cuda"}, "env.CUDA_HOME", "warn"),
        ({"env": {"CUDA_VISIBLE_DEVICES": ""}}, "env.CUDA_VISIBLE_DEVICES", "warn"),
        ({"env": {"CUDA_LAUNCH_BLOCKING": "1"}}, "env.CUDA_LAUNCH_BLOCKING", "warn"),
        ({"resolved_env.FCCTL_CUDA_ARCH": "80"}, "env.FCCTL_CUDA_ARCH", "warn"),
    ],
)
def test_findings(changes: dict[str, Any], name: str, status: str) -> None:
    statuses, summary = judged(changes)
    assert statuses[name] == status
    if status in ("warn", "fail"):
        assert summary["status"] != "pass"
    if status == "fail":
        assert summary["status"] == "fail"


GONE: dict[str, Any] = {
    "gpu": {"present": False, "count": 0, "installed": [], "complaint": None},
    "cuda": {"home": None, "nvcc": None, "version": None, "on_path": False},
    "ncu": {"path": None, "version": None, "counters": "unknown"},
    "torch.cuda_available": False,
    "torch.cuda_version": None,
}


@pytest.mark.parametrize(
    ("expect", "overall", "gpu"), [("gpu", "fail", "fail"), ("absent", "warn", "warn"), ("none", "pass", "info")]
)
def test_a_machine_without_gpu(expect: str, overall: str, gpu: str) -> None:
    statuses, summary = judged(GONE, expect)
    assert statuses["gpu.present"] == gpu
    assert summary["status"] == overall


@pytest.mark.parametrize(
    "complaint", [None, "nvidia-smi did not answer within 15 s", "nvidia-smi failed: No devices were found"]
)
def test_an_installed_gpu_whose_driver_died_fails(complaint: str | None) -> None:
    changes = {**GONE, "gpu": {"present": False, "count": 0, "installed": ["0000:00:03.0"], "complaint": complaint}}
    assert document._expectation(changes["gpu"], "auto") == "gpu"
    statuses, summary = judged(changes)
    assert statuses["gpu.driver"] == "fail"
    assert summary["status"] == "fail"


def test_require_decides_what_is_expected() -> None:
    absent = {"present": False, "installed": []}
    assert document._expectation(absent, "auto") == "absent"
    assert document._expectation(absent, "gpu") == "gpu"
    assert document._expectation({"present": True, "installed": ["x"]}, "none") == "none"


# ------------------------------------------------------------------------------------------------ printed
def report(status: str, message: str = "m") -> dict[str, Any]:
    items = [{"section": "CUDA Toolkit", "id": "x", "status": status, "message": message, "hint": "do this"}]
    items += [{"section": "GPU Hardware", "id": "y", "status": "pass", "message": "ok", "hint": None}]
    return {"checks": items, "summary": checks.summary(items)}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("status", "code", "counts", "last"),
    [
        ("pass", 0, "2 passed, 0 warnings, 0 critical errors", "[PASS] preflight: all checks passed"),
        ("warn", 1, "1 passed, 1 warning, 0 critical errors", "[WARN] preflight: usable, with 1 warning"),
        ("fail", 2, "1 passed, 0 warnings, 1 critical error", "[FAIL] preflight: 1 critical error, 0 warnings: "),
    ],
)
def test_render_and_exit_code(status: str, code: int, counts: str, last: str) -> None:
    text = document.render(report(status))
    lines = text.splitlines()
    assert document.exit_code(report(status)) == code
    assert lines[-2] == counts
    assert lines[-1].startswith(last)
    assert text.index("GPU Hardware") < text.index("CUDA Toolkit") < text.index("Summary")
    assert ("hint: do this" in text) is (status != "pass")


def test_render_color_and_control_characters() -> None:
    hostile = report("warn", "nvcc\x1b]0;title\x07\nnext\r\x9b31m")
    plain = document.render(hostile)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", plain)
    colored = document.render(hostile, color=True)
    assert "\x1b[33m[WARN]\x1b[0m" in colored
    assert re.sub(r"\x1b\[[0-9]*m", "", colored) == plain


# ------------------------------------------------------------------------------------------------ the real machine
def test_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Probes where the test runs: whatever it is, the document is whole and the exit code follows from it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FCCTL_PYTHON", sys.executable)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    code = document.main(["--json", "--out", str(tmp_path / "out"), "--require", "none"])
    shown = json.loads(capsys.readouterr().out)
    written = json.loads((tmp_path / "out" / "environment.json").read_text())
    assert shown == written
    assert "hunter2" not in json.dumps(written)
    assert written["kind"] == "environment"
    assert {"gpu", "cuda", "ncu", "torch", "compiler", "os", "cpu", "boot_id", "env", "resolved_env"} <= set(written)
    assert code == document.exit_code(written) == {"pass": 0, "warn": 1, "fail": 2}[written["summary"]["status"]]
    assert written["cpu"]["cores"] >= 1
    assert written["tools"]["bash"]
    assert os.listdir(tmp_path / "out") == ["environment.json"]
    text = document.render(written)
    assert all(section in text for section in checks.SECTIONS)


def test_out_that_cannot_be_written_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr("fcctl_remote.probe.document.collect", lambda require: report("pass"))
    assert document.main(["--out", str(tmp_path / "file")]) == 2
    assert "cannot write" in capsys.readouterr().err


def test_unknown_option_is_a_usage_error() -> None:
    with pytest.raises(SystemExit) as caught:
        document.main(["--require", "tpu"])
    assert caught.value.code == 2


# ------------------------------------------------------------------------------------------------ the call
def test_the_targets_env_counts_as_it_does_in_a_step(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, str] = {}

    def collect(env: dict[str, str]) -> dict[str, Any]:
        seen.update(env)
        return {"summary": {"status": "warn"}}

    monkeypatch.setattr(document, "collect", collect)
    monkeypatch.setattr(document, "render", lambda _document: "all is well")
    monkeypatch.setenv("FCCTL_PYTHON", "/usr/bin/python3")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    calls = Calls(layout, [], "")
    answer, _ = calls.probe({"env": {"FCCTL_PYTHON": "/opt/torch/bin/python"}}, b"")
    assert (seen["FCCTL_PYTHON"], seen["OMP_NUM_THREADS"]) == ("/opt/torch/bin/python", "3")
    assert (answer["exit_code"], answer["text"]) == (1, "all is well")
    calls.probe({}, b"")
    assert seen["FCCTL_PYTHON"] == "/usr/bin/python3"


def test_an_emulated_machine_has_boots_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FCCTL_EMULATOR_BOOT_ID", raising=False)
    kernel = hostfacts.boot_id()
    assert kernel == hostfacts.boot_id()
    monkeypatch.setenv("FCCTL_EMULATOR_BOOT_ID", "first")
    assert hostfacts.boot_id() == hostfacts.brief()["boot_id"] == "first"
    monkeypatch.setenv("FCCTL_EMULATOR_BOOT_ID", "second")
    assert hostfacts.boot_id() == "second"
    monkeypatch.setenv("FCCTL_EMULATOR_BOOT_ID", "")
    assert hostfacts.boot_id() == kernel


# ------------------------------------------------------------------------------------------------ remembered
def probed(root: Path, out: Path, *words: str) -> tuple[int, float]:
    code = document.main(["--out", str(out), "--require", "none", *words], str(root))
    return code, json.loads((out / "environment.json").read_text())["time"]


def test_what_was_found_is_remembered_until_a_file_or_a_variable_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []

    def collect(require: str) -> dict[str, Any]:
        found.append(require)
        return {**report("warn"), "require": require, "time": float(len(found))}

    monkeypatch.setattr("fcctl_remote.probe.document.collect", collect)
    monkeypatch.setenv("FCCTL_EMULATOR_BOOT_ID", "1")
    python = script(tmp_path / "python", f'exec {sys.executable} "$@"')
    monkeypatch.setenv("FCCTL_PYTHON", str(python))
    assert probed(tmp_path, tmp_path / "out", "--once") == (1, 1.0)
    assert probed(tmp_path, tmp_path / "other", "--once") == (1, 1.0)
    assert probed(tmp_path, tmp_path / "out") == (1, 2.0), "asked for anew"
    assert probed(tmp_path, tmp_path / "out", "--once") == (1, 2.0)
    monkeypatch.setenv("FCCTL_CUDA_ARCH", "90")
    assert probed(tmp_path, tmp_path / "out", "--once") == (1, 3.0)
    monkeypatch.setenv("FCCTL_EMULATOR_BOOT_ID", "2")
    assert probed(tmp_path, tmp_path / "out", "--once") == (1, 4.0)
    (tmp_path / "preflight.json").write_text('{"document": {"summary": [')
    assert probed(tmp_path, tmp_path / "out", "--once") == (1, 5.0)


def test_a_failure_is_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for status, code in (("fail", 2), ("pass", 0)):
        monkeypatch.setattr(
            "fcctl_remote.probe.document.collect",
            lambda require, s=status: {**report(s), "require": require, "time": 1},
        )
        assert document.main(["--out", str(tmp_path / "out"), "--once"], str(tmp_path)) == code


def test_the_names_of_the_gpus_that_the_driver_has(tmp_path: Path) -> None:
    """A run that ends before the first sample of its telemetry names its GPU, too."""
    for address, model in (("0000:81:00.0", "NVIDIA L4"), ("0000:02:00.0", "NVIDIA H100 80GB HBM3")):
        (tmp_path / address).mkdir()
        text = f"Model: \t\t {model}\nIRQ:   \t\t 130\nGPU UUID: \t GPU-0\nVideo BIOS: \t 95.04\n"
        (tmp_path / address / "information").write_text(text)
    (tmp_path / "0000:ff:00.0").mkdir()
    assert driver_models(str(tmp_path)) == ["NVIDIA H100 80GB HBM3", "NVIDIA L4"]
    assert driver_models(str(tmp_path / "none")) == []
