"""The ``environment`` document: the facts of a machine, and what to think of them; ``fcctl-host probe`` writes and
prints it, as a program and as a job's step."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fcctl_remote.base import files
from fcctl_remote.base.hostfacts import boot_id
from fcctl_remote.base.programs import ask, which
from fcctl_remote.base.text import one_line
from fcctl_remote.probe import checks, environment, gpu
from fcctl_remote.probe.checks import SECTIONS
from fcctl_remote.probe.environment import apply_facts, find_facts, key_of, load_facts
from fcctl_remote.wire import SCHEMA_VERSION

REQUIRE = ("auto", "gpu", "none")
#: The variables that matter to CUDA work. Others are left out: an environment holds secrets.
VARIABLES = (
    "CUDA_HOME", "CUDA_PATH", "CUDA_ROOT", "PATH", "LD_LIBRARY_PATH", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF",
    "TORCH_CUDA_ARCH_LIST", "CUDAARCHS", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING",
    "CUDA_CACHE_PATH", "CUDA_MODULE_LOADING", "NVIDIA_VISIBLE_DEVICES", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS",
    "CC", "CXX", "CUDACXX", "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "OMP_NUM_THREADS", "LANG", "LC_ALL",
    "FCCTL_PYTHON", "FCCTL_CUDA_ARCH",
)  # fmt: skip


#: A first import from a cold disk takes tens of seconds.
TORCH_TIMEOUT_S = 90.0
#: In a process of its own: importing torch takes seconds and can crash.
_ASK_TORCH = """
import json
out = {}
try:
    import torch
    out.update(version=torch.__version__, cuda_version=torch.version.cuda, cuda_available=torch.cuda.is_available())
    if out["cuda_available"]:
        out["device"] = torch.cuda.get_device_name(0)
        out["capability"] = "%d.%d" % torch.cuda.get_device_capability(0)
        out["archs"] = torch.cuda.get_arch_list()
        names = ("flash", "mem_efficient", "math", "cudnn")
        out["sdpa"] = {n: bool(getattr(torch.backends.cuda, n + "_sdp_enabled", lambda: False)()) for n in names}
    elif torch.version.cuda:
        try:
            torch.cuda.init()
        except Exception as error:
            out["why"] = str(error)[:300]
except BaseException as error:
    out["error"] = "%s: %s" % (type(error).__name__, str(error)[:300])
print("\\n" + json.dumps(out))
"""


def collect(env: Mapping[str, str] | None = None, require: str = "auto") -> dict[str, Any]:
    """Probe this machine. Takes as long as importing torch does; never hangs on a program that does.

    ``require`` is ``gpu`` (a machine without one fails), ``none`` (nothing about GPUs counts), or ``auto``: ``gpu`` if
    one is visible to nvidia-smi, as a device file, or on the PCI bus, so that a GPU whose driver died is a failure.
    """
    env = dict(os.environ if env is None else env)
    started = time.time()
    smi = gpu.nvidia_smi(env)
    answer = gpu.query(smi, env) if smi else None
    facts = find_facts(env, answer)
    resolved = apply_facts(env, facts)
    document: dict[str, Any] = {"kind": "environment", "schema_version": SCHEMA_VERSION, "time": started}
    document.update(_ask_programs({**env, **resolved}, facts, answer))
    document["cuda"]["on_path"] = which("nvcc", env) is not None
    document.update(
        os=checks.operating_system(),
        cpu=checks.processor(),
        disk=checks.disk(env.get("HOME") or "/"),
        tools=checks.tools({**env, **resolved}),
        boot_id=boot_id(),
        env={name: env[name] for name in VARIABLES if name in env},
        resolved_env=resolved,
    )
    expect = _expectation(document["gpu"], require)
    document["require"] = require
    document["checks"] = checks.judge(document, expect)
    document["summary"] = checks.summary(document["checks"])
    document["duration_s"] = round(time.time() - started, 3)
    return document


def _expectation(gpu_facts: Mapping[str, Any], require: str) -> str:
    if require != "auto":
        return require
    return "gpu" if gpu_facts["present"] or gpu_facts["installed"] else "absent"


def _ask_programs(env: Mapping[str, str], facts: Mapping[str, Any], answer: gpu.Answer | None) -> dict[str, Any]:
    """Ask torch, nvcc, ncu, the compiler and nvidia-smi at the same time: torch takes longer than the rest together."""
    compiler = checks.cxx(env)
    with ThreadPoolExecutor(max_workers=5) as pool:
        torch = pool.submit(_torch, facts["python"], facts["torch_file"], env)
        nvcc = pool.submit(checks.version, facts["nvcc"], r"release ([0-9]{1,3}\.[0-9]{1,3})", env)
        ncu = pool.submit(checks.version, facts["ncu"], r"Version ([0-9]{4}\.[0-9.]{1,20})", env)
        cxx = pool.submit(checks.version, compiler, r"(\S[^\n]{0,198})", env)
        rows = answer.rows if answer else []
        newest = pool.submit(gpu.cuda_version, facts["nvidia_smi"], env) if rows else None
    gpu_facts = gpu.describe(rows, newest.result() if newest else None, env)
    gpu_facts["installed"] = [*gpu.pci_devices(), *gpu.device_files()]
    gpu_facts["complaint"] = answer.complaint if answer else None
    return {
        "gpu": gpu_facts,
        "cuda": {"home": facts["cuda_home"], "nvcc": facts["nvcc"], "version": nvcc.result()},
        "ncu": {"path": facts["ncu"], "version": ncu.result(), "counters": gpu.counters()},
        "torch": torch.result(),
        "compiler": {"cxx": compiler, "version": cxx.result()},
    }


def _torch(python: str, torch_file: str | None, env: Mapping[str, str]) -> dict[str, Any]:
    """``{python, version, cuda_version, cuda_available, device?, capability?, archs?, sdpa?, why?, error?, install?}``.

    ``install``: without torch, the command that gives it to this Python."""
    facts: dict[str, Any] = {"python": python, "version": None, "cuda_version": None, "cuda_available": False}
    if torch_file is None:
        return {**facts, "install": environment.install(python, ["torch"], env)}
    answer, done = ask(python, _ASK_TORCH, TORCH_TIMEOUT_S, env)
    if answer:
        return {**facts, **answer}
    if done.timed_out:
        return {**facts, "error": "importing torch took over %d s" % TORCH_TIMEOUT_S}
    return {**facts, "error": "importing torch failed with exit code %s: %s" % (done.code, done.err.strip()[-200:])}


def main(argv: list[str] | None = None, root: str | None = None) -> int:
    """``fcctl-host probe [--json] [--out DIR] [--require auto|gpu|none] [--once]``; returns :func:`exit_code`.

    ``root``: the host's folder, in which ``--once`` finds what an earlier probe of this boot left.
    """
    parser = argparse.ArgumentParser(prog="fcctl-host probe", description="Check this machine for CUDA work.")
    parser.add_argument("--json", action="store_true", help="print the environment document")
    parser.add_argument("--out", metavar="DIR", help="also write DIR/environment.json")
    parser.add_argument(
        "--require", choices=REQUIRE, default="auto",
        help="gpu: fail without a working GPU; none: need no GPU; auto (default): gpu if one is installed",
    )  # fmt: skip
    parser.add_argument(
        "--once", action="store_true", help="use the result of an earlier probe since the last boot, if it did not fail"
    )
    options = parser.parse_args(argv)
    document = _recall(root, options.require) if options.once and root else None
    if document is not None:
        print("checked %d minutes ago; to check again: fcctl run preflight" % ((time.time() - document["time"]) // 60))
    else:
        document = collect(require=options.require)
        if root:
            _keep(root, document)
    if options.out:
        try:
            _write(options.out, document)
        except OSError as error:
            print("error: cannot write the environment document: %s" % error, file=sys.stderr)
            return 2
    if options.json:
        print(json.dumps(document, indent=2))
    else:
        color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        sys.stdout.write(render(document, color).encode("utf-8", "replace").decode("utf-8"))
    return exit_code(document)


def exit_code(document: Mapping[str, Any]) -> int:
    """0 all checks passed, 1 there are warnings, 2 there are critical errors."""
    return {"pass": 0, "warn": 1}.get(document["summary"]["status"], 2)


def _write(folder: str, document: dict[str, Any]) -> None:
    os.makedirs(folder, exist_ok=True)
    data = json.dumps(document, indent=2).encode("utf-8")
    files.write_atomic(os.path.join(folder, "environment.json"), data, durable=False)


#: What preflight found, for later runs of one boot and one environment, while no file that it looked at changes.
KEPT = "preflight.json"
GOOD = ("pass", "warn")


def _recall(root: str, require: str) -> dict[str, Any] | None:
    """The document that :func:`_keep` kept, if it still holds."""
    try:
        kept = files.read_object(os.path.join(root, KEPT)) or {}
        document = kept["document"]
        holds = document["summary"]["status"] in GOOD and document["time"] > 0
        return document if holds and kept["key"] == _key(root, require) else None
    except (OSError, LookupError, TypeError):
        return None


def _keep(root: str, document: Mapping[str, Any]) -> None:
    """Keeps a document without an error; what failed is looked at again each time."""
    if document["summary"]["status"] in GOOD:
        content = {"key": _key(root, document["require"]), "document": document}
        with contextlib.suppress(OSError):  # a full disk costs only time
            files.write_atomic(os.path.join(root, KEPT), files.to_json(content), durable=False, mode=0o600)


def _key(root: str, require: str) -> str:
    env = dict(os.environ)
    given = [env.get(name) for name in VARIABLES if name != "PATH"]
    inputs = [key_of(env, root), load_facts(env, root)["watched"], require, given]
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


_LABELS = {"pass": "[PASS]", "warn": "[WARN]", "fail": "[FAIL]", "info": "[INFO]"}
_COLORS = {"pass": "\x1b[32m", "warn": "\x1b[33m", "fail": "\x1b[31m", "info": "\x1b[36m"}
_BOLD, _RESET = "\x1b[1m", "\x1b[0m"
_WIDTH = 72


def render(document: Mapping[str, Any], color: bool = False) -> str:
    """Sections of checks, a summary with counts, and one last [PASS], [WARN] or [FAIL] line."""
    lines: list[str] = []
    checks = document["checks"]
    for section in SECTIONS:
        rows = [c for c in checks if c["section"] == section]
        if not rows:
            continue
        title = "%s %s" % (section, "-" * max(3, _WIDTH - len(section) - 1))
        lines += ["", _BOLD + title + _RESET if color else title]
        for check in rows:
            lines += _check(check, color)
    summary = document["summary"]
    title = "Summary " + "-" * (_WIDTH - 8)
    lines += ["", _BOLD + title + _RESET if color else title]
    lines.append("%d passed, %s, %s" % (summary["passed"], *_counts(summary)))
    lines.append("%s %s" % (_label(summary["status"], color), _verdict(summary)))
    return "\n".join(lines).lstrip("\n") + "\n"


def _check(check: Mapping[str, Any], color: bool) -> list[str]:
    lines = ["%s %s" % (_label(check["status"], color), one_line(str(check["message"]), 1000))]
    if check.get("hint") and check["status"] != "pass":
        lines.append("       hint: " + one_line(str(check["hint"]), 1000))
    return lines


def _label(status: str, color: bool) -> str:
    label = _LABELS.get(status, "[INFO]")
    return "%s%s%s" % (_COLORS.get(status, ""), label, _RESET) if color else label


def _counts(summary: Mapping[str, Any]) -> list[str]:
    warnings, errors = summary["warnings"], summary["errors"]
    return [
        "%d warning%s" % (warnings, "" if warnings == 1 else "s"),
        "%d critical error%s" % (errors, "" if errors == 1 else "s"),
    ]


def _verdict(summary: Mapping[str, Any]) -> str:
    warnings, errors = _counts(summary)
    words: dict[str, str] = {
        "pass": "preflight: all checks passed",
        "warn": "preflight: usable, with %s" % warnings,
        "fail": "preflight: %s, %s: fix them before any GPU work" % (errors, warnings),
    }
    return words[summary["status"]]
