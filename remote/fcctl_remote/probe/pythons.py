"""Finding a Python that has torch without importing torch, which takes seconds."""

from __future__ import annotations

import glob
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence

from fcctl_remote.base import programs
from fcctl_remote.base.files import open_plain
from fcctl_remote.base.programs import run, which
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
