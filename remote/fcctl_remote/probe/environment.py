"""The environment a step runs in, completed: CUDA off PATH, a Python with torch, found without importing torch, which
takes seconds; the GPU's architecture.

Finding these out takes up to seconds, so the answer is kept in ``facts.json``. It holds as long as the machine has not
booted again, the variables it depends on are the same, and no file or folder it was found in (or not found in) changed.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import re
import stat
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

from fcctl_remote.base import files, programs
from fcctl_remote.base.files import open_plain
from fcctl_remote.base.hostfacts import boot_id
from fcctl_remote.base.programs import run, which
from fcctl_remote.probe import gpu
from fcctl_remote.record import Any

MAX_CANDIDATES = 16
#: A Python on a disk that is cold, or on a busy machine, takes seconds; to pass it over costs a step its torch.
CANDIDATE_TIMEOUT_S = 10.0
#: Under these, a folder per environment: ``/opt/NAME/bin/python3``, ``/opt/NAME/.venv/bin/python3``.
_FOLDERS = (
    "/opt/*/.venv", "/opt/*/venv", "/opt/*", "~/venv", "~/.venv", "~/venvs/*", "~/*/.venv",
    "~/.local/share/virtualenvs/*", "~/.cache/pypoetry/virtualenvs/*",
)  # fmt: skip
_CONDAS = ("/opt/conda", "~/miniconda3", "~/anaconda3", "~/miniforge3", "~/mambaforge", "~/.conda", "~/micromamba")

# find_spec runs what stands in the packages' own files, which may raise anything: then there is no torch to use.
_ASK = """
import json
try:
    from importlib.util import find_spec
    spec = find_spec("torch")
except Exception:
    spec = None
origin = getattr(spec, "origin", None)
print(json.dumps({"version": "%d.%d.%d" % sys.version_info[:3], "torch": origin, "path": sys.path[:40]}))
"""


def candidates(env: Mapping[str, str]) -> Iterator[str]:
    """Python programs in order of preference, each once (by what it is linked to and where it lies)."""
    seen = set()
    for path in _places(env):
        # A venv's python is a link to the system's: the folder it stands in is what makes it another Python.
        key = (os.path.realpath(os.path.dirname(path)), os.path.basename(os.path.realpath(path)))
        if key not in seen and os.path.isfile(path) and os.access(path, os.X_OK):
            seen.add(key)
            yield path
        if len(seen) >= MAX_CANDIDATES:
            return


def _places(env: Mapping[str, str]) -> Iterator[str]:
    if env.get("FCCTL_PYTHON"):
        yield env["FCCTL_PYTHON"]
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if env.get(variable):
            yield os.path.join(env[variable], "bin", "python3")
    yield from filter(None, (which(program, env) for program in ("python3", "python")))
    yield sys.executable
    yield from _numbered(env)
    home = env.get("HOME", "")
    for pattern in _FOLDERS + _CONDAS + tuple(c + "/envs/*" for c in _CONDAS):
        if home or not pattern.startswith("~"):
            for folder in sorted(glob.glob(pattern.replace("~", glob.escape(home), 1)))[:MAX_CANDIDATES]:
                yield os.path.join(folder, "bin", "python3")


def activated(python: str, env: Mapping[str, str]) -> dict[str, str]:
    """What is set where the virtual or conda environment of ``python`` is active; nothing if it is in none."""
    python = os.path.expanduser(python)
    folder = os.path.dirname(python)
    prefix = os.path.dirname(folder)
    for mark, name in (("pyvenv.cfg", "VIRTUAL_ENV"), ("conda-meta", "CONDA_PREFIX")):
        if os.path.exists(os.path.join(prefix, mark)):
            return {"FCCTL_PYTHON": python, name: prefix, "PATH": folder + ":" + (env.get("PATH") or os.defpath)}
    return {}


def _numbered(env: Mapping[str, str]) -> Iterator[str]:
    """``python3.N`` on PATH, of each folder the newest first."""
    for folder in (env.get("PATH") or os.defpath).split(":")[:50]:
        if folder:
            numbered = [p for p in glob.glob(os.path.join(glob.escape(folder), "python3.*")) if _minor(p)]
            yield from sorted(numbered, key=_minor, reverse=True)


def _minor(path: str) -> int:
    match = re.match(r"python3\.([0-9]{1,2})\Z", os.path.basename(path))
    return int(match.group(1)) if match else 0


def ask(python: str, env: Mapping[str, str]) -> dict[str, Any] | None:
    """``{version, torch, path}`` of one candidate (``torch``: the file it would import), or None if it does not run."""
    answer, _ = programs.ask(python, _ASK, CANDIDATE_TIMEOUT_S, env)
    return answer if isinstance(answer.get("path"), list) else None


#: Whether the system keeps pip out of it (PEP 668), as Debian 12 and Ubuntu 24.04 do.
_MANAGED = """
import os, sys, sysconfig
marker = os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED")
print(sys.prefix == sys.base_prefix and os.path.exists(marker))
"""


def install(python: str, names: Sequence[str], env: Mapping[str, str]) -> str:
    """The command that gives ``python`` the packages, or, where pip would refuse, a virtual environment of it that
    :func:`candidates` finds."""
    what = " ".join(names)
    if run([python, "-c", _MANAGED], CANDIDATE_TIMEOUT_S, env).out.strip() == "True":
        return "%s -m venv --system-site-packages ~/.venv && ~/.venv/bin/pip install %s" % (python, what)
    return "%s -m pip install %s" % (python, what)


def best(env: Mapping[str, str], want_cuda: bool) -> dict[str, Any]:
    """The Python for kernels' checks and benches: ``{python, torch_file, torch_cuda, watched}``.

    The first with torch; where there is a GPU, the first whose torch was built for CUDA. Without torch anywhere, the
    first Python that runs. ``watched`` are the paths whose change makes the answer stale.
    """
    watched: list[str] = []
    first: str | None = None
    chosen: dict[str, Any] | None = None
    for python in candidates(env):
        answer = ask(python, env)
        watched.append(python)
        if answer is None:
            continue
        watched.extend(str(p) for p in answer["path"] if "site-packages" in str(p) or "dist-packages" in str(p))
        first = first or python
        if isinstance(answer.get("torch"), str):
            cuda = _torch_cuda(answer["torch"])
            if chosen is None or cuda:
                chosen = {"python": python, "torch_file": answer["torch"], "torch_cuda": cuda}
            if cuda or not want_cuda:
                break
    if chosen is None:
        watched += [env["HOME"], os.path.join(env["HOME"], ".local", "lib")] if env.get("HOME") else []
        return {"python": first or sys.executable, "torch_file": None, "torch_cuda": None, "watched": watched}
    return {**chosen, "watched": [*watched, chosen["torch_file"]]}


def _torch_cuda(torch_file: str) -> str | None:
    """The CUDA version torch was built for, from its ``version.py``: ``cuda: str | None = '12.9'``."""
    try:
        path = os.path.join(os.path.dirname(torch_file), "version.py")
        with os.fdopen(open_plain(path, follow=True), encoding="utf-8") as stream:
            text = stream.read(10_000)
    except (OSError, ValueError):
        return None
    match = re.search(r"^cuda\b[^=\n]*=\s*['\"]([0-9.]{1,12})['\"]", text, re.MULTILINE)
    return match.group(1) if match else None


FACTS_VERSION = 1
DEFAULT_ARCH = "89"
#: After this long an nvidia-smi that failed although a GPU is there is asked again.
RETRY_S = 30.0
_INPUTS = (
    "PATH", "HOME", "CUDA_HOME", "CUDA_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "FCCTL_PYTHON", "PYTHONPATH",
    "PYTHONHOME", "CUDA_VISIBLE_DEVICES",
)  # fmt: skip
_SYSTEM_FOLDERS = ("/usr/bin", "/bin")
_ALLOC = "expandable_segments:True"


def resolve_environment(base_env: Mapping[str, str], root: str) -> dict[str, str]:
    """Additions and overrides for a step's environment; ``base_env`` is not changed.

    Applying it twice changes nothing more. A variable the user has set is kept, except that paths are appended to PATH
    and LD_LIBRARY_PATH. ``root`` is the host folder whose ``facts.json`` keeps what was found (a few stats when valid).
    """
    facts = load_facts(base_env, root)
    return apply_facts(base_env, facts)


def apply_facts(base_env: Mapping[str, str], facts: Mapping[str, Any]) -> dict[str, str]:
    changes: dict[str, str] = {}
    nvcc, ncu, smi, home = (facts.get(k) for k in ("nvcc", "ncu", "nvidia_smi", "cuda_home"))
    if home and base_env.get("CUDA_HOME") != home:
        changes["CUDA_HOME"] = home
    programs = [os.path.dirname(p) for p in (nvcc, ncu, smi) if p]
    _extend(changes, base_env, "PATH", [p for p in programs if p not in _SYSTEM_FOLDERS])
    _extend(changes, base_env, "LD_LIBRARY_PATH", gpu.libraries(home, smi))
    if not base_env.get("PYTORCH_CUDA_ALLOC_CONF") and not base_env.get("PYTORCH_ALLOC_CONF"):
        changes["PYTORCH_CUDA_ALLOC_CONF"] = _ALLOC
    changes["FCCTL_PYTHON"] = base_env.get("FCCTL_PYTHON") or facts.get("python") or sys.executable
    capability = facts.get("compute_capability")
    arch = base_env.get("FCCTL_CUDA_ARCH") or (capability.replace(".", "") if capability else DEFAULT_ARCH)
    changes["FCCTL_CUDA_ARCH"] = arch
    changes["TORCH_CUDA_ARCH_LIST"] = base_env.get("TORCH_CUDA_ARCH_LIST") or dotted(arch)
    # What CMake compiles CUDA for where a project does not say; its own default is the oldest that nvcc knows.
    changes["CUDAARCHS"] = base_env.get("CUDAARCHS") or arch
    return changes


def dotted(arch: str) -> str:
    """``89`` -> ``8.9``, ``120`` -> ``12.0``, ``90a`` -> ``9.0a``; anything else as it is."""
    suffix = arch[-1] if arch[-1:].isalpha() else ""
    digits = arch[: len(arch) - len(suffix)]
    return "%s.%s%s" % (digits[:-1], digits[-1], suffix) if digits.isdigit() and len(digits) > 1 else arch


def _extend(changes: dict[str, str], base_env: Mapping[str, str], name: str, folders: list[str]) -> None:
    old = base_env.get(name, "")
    # A bash without PATH still finds programs by its own default; setting PATH to CUDA alone would take those away.
    parts = old.split(":") if old else (os.defpath.split(":") if name == "PATH" else [])
    added = [f for i, f in enumerate(folders) if f not in parts and f not in folders[:i]]
    if added:
        changes[name] = ":".join([*parts, *added])


def load_facts(env: Mapping[str, str], root: str) -> dict[str, Any]:
    """Facts from the cache if they hold, else found out anew and kept (unless ``root`` cannot be written)."""
    path, key = os.path.join(root, "facts.json"), key_of(env, root)
    env = {**env, "PATH": _lasting(env.get("PATH", ""), root)}
    cached = _read(path, key)
    if cached is not None:
        return cached
    facts = find_facts(env)
    _write(path, key, facts)
    return facts


def _lasting(path: str, root: str) -> str:
    """PATH without the folders of single runs, which would make each run's facts its own."""
    inside = os.path.join(root, "")
    return ":".join(p for p in path.split(":") if not p.startswith(inside))


def find_facts(env: Mapping[str, str], answer: gpu.Answer | None = None) -> dict[str, Any]:
    """Look everything up; ``answer`` is nvidia-smi's, where that is known already."""
    present = gpu.visible()
    smi = gpu.nvidia_smi(env)
    if smi and answer is None:
        answer = gpu.query(smi, env)
    capability = gpu.capability(answer.rows, env) if answer else None
    python = best(env, want_cuda=present)
    nvcc = gpu.nvcc(env) or gpu.pip_nvcc(python["torch_file"])
    facts: dict[str, Any] = {
        "nvcc": nvcc,
        "ncu": gpu.ncu(env),
        "nvidia_smi": smi,
        "cuda_home": gpu.home_of(nvcc, env) if nvcc else None,
        "python": python["python"],
        "torch_file": python["torch_file"],
        "torch_cuda": python["torch_cuda"],
        "compute_capability": capability,
        "retry_after": time.time() + RETRY_S if (present or smi) and capability is None else None,
    }
    files = [facts[k] for k in ("nvcc", "ncu", "nvidia_smi") if facts[k]]
    watched = sorted({*files, *python["watched"], *gpu.watched(env), *gpu.device_files(), "/dev/nvidia0"})
    facts["watched"] = {p: _stat(p) for p in watched}
    return facts


def key_of(env: Mapping[str, str], root: str) -> str:
    """Names this boot of the machine and all of ``env`` that facts depend on."""
    given = {**env, "PATH": _lasting(env.get("PATH", ""), root)}
    inputs = [FACTS_VERSION, boot_id(), sys.version_info[:2], [given.get(name) for name in _INPUTS]]
    return hashlib.sha256(json.dumps(inputs).encode()).hexdigest()


def _stat(path: str) -> list[int] | None:
    try:
        info = os.stat(path)
    except (OSError, ValueError):
        return None
    if stat.S_ISCHR(info.st_mode):
        return [info.st_ino, info.st_rdev]  # a device's times change with use
    return [info.st_ino, 0 if stat.S_ISDIR(info.st_mode) else info.st_size, info.st_mtime_ns]


def _read(path: str, key: str) -> dict[str, Any] | None:
    try:
        facts = (files.read_object(path) or {}).get(key)
        if not isinstance(facts, dict) or any(_stat(p) != s for p, s in facts["watched"].items()):
            return None
        retry = facts.get("retry_after")
        return None if retry is not None and not 0 <= retry - time.time() <= RETRY_S else facts
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return None


def _write(path: str, key: str, facts: dict[str, Any]) -> None:
    """Atomically, keeping the entries of a few other environments. Losing a race or a full disk costs only time."""
    with contextlib.suppress(OSError):
        entries = files.read_object(path) or {}
        others = {k: v for k, v in list(entries.items())[-7:] if k != key}
        files.write_atomic(path, files.to_json({**others, key: facts}), durable=False, mode=0o600)
