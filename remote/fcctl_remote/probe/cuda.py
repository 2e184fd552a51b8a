"""Finding the CUDA toolkit, Nsight Compute and nvidia-smi, also where PATH lacks them, as it does over SSH."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from fcctl_remote.base.programs import which

_TOOLKITS = (
    "/usr/local/cuda", "/usr/local/cuda-*", "/opt/cuda", "/opt/cuda-*", "/opt/nvidia/hpc_sdk/*/*/cuda",
    "/usr/lib/nvidia-cuda-toolkit", "/usr/lib/cuda",
)  # fmt: skip
_NSIGHT = (
    "/opt/nvidia/nsight-compute/*", "/usr/local/NVIDIA-Nsight-Compute*", "/opt/cuda/nsight_compute",
    "/usr/local/cuda*/nsight-compute*", "/usr/lib/nsight-compute",
)  # fmt: skip
_SMI = ("/usr/bin", "/usr/local/nvidia/bin", "/usr/lib/wsl/lib", "/opt/bin", "/opt/nvidia/bin")
_ROOTS = ("/usr/local", "/opt", "/opt/nvidia", "/opt/nvidia/nsight-compute")  # whose change may bring a new toolkit


def nvcc(env: Mapping[str, str]) -> str | None:
    """PATH, then ``CUDA_HOME``, then the usual folders (newest first), then pip's nvidia packages."""
    return _find("nvcc", env, (os.path.join(home, "bin") for home in _homes(env)))


def _find(name: str, env: Mapping[str, str], folders: Iterable[str]) -> str | None:
    """The program on PATH, else in the first of ``folders`` that has it."""
    paths = (os.path.join(folder, name) for folder in folders)
    return which(name, env) or next(filter(_executable, paths), None)


def _homes(env: Mapping[str, str]) -> Iterator[str]:
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if env.get(variable):
            yield env[variable]
    yield from _newest(_TOOLKITS)


def pip_nvcc(torch_file: str | None) -> str | None:
    """The last resort: ``nvidia-cuda-nvcc`` beside torch in site-packages, if it holds the compiler's driver."""
    if not torch_file:
        return None
    site = os.path.dirname(os.path.dirname(torch_file))
    places = [*_newest((os.path.join(glob.escape(site), "nvidia", "cu[0-9]*"),)), site + "/nvidia/cuda_nvcc"]
    paths = [os.path.join(place, "bin", "nvcc") for place in places]
    return next((path for path in paths if _executable(path)), None)


def home_of(nvcc_path: str, env: Mapping[str, str]) -> str | None:
    """``CUDA_HOME`` that goes with an nvcc: the user's own if it has one, else two folders above the program.

    A wrapper script (``/usr/local/bin/nvcc``) is no toolkit; then the newest usual folder counts.
    """
    own = env.get("CUDA_HOME")
    if own and _executable(os.path.join(own, "bin", "nvcc")):
        return own
    for path in (nvcc_path, os.path.realpath(nvcc_path)):
        home = os.path.dirname(os.path.dirname(path))
        if _is_toolkit(home):
            return home
    return next((home for home in _newest(_TOOLKITS) if _is_toolkit(home)), None)


def _is_toolkit(home: str) -> bool:
    return _executable(os.path.join(home, "bin", "nvcc")) and (
        os.path.isfile(os.path.join(home, "bin", "nvcc.profile")) or os.path.isdir(os.path.join(home, "nvvm"))
    )


def ncu(env: Mapping[str, str]) -> str | None:
    return _find("ncu", env, chain((os.path.join(home, "bin") for home in _homes(env)), _newest(_NSIGHT)))


def nvidia_smi(env: Mapping[str, str]) -> str | None:
    return _find("nvidia-smi", env, _SMI)


def libraries(home: str | None, smi: str | None) -> list[str]:
    """Folders for LD_LIBRARY_PATH: the toolkit's, and the driver's where it lies beside a bare nvidia-smi."""
    folders = []
    if home:
        folders += [f for f in (os.path.join(home, "lib64"), os.path.join(home, "lib")) if os.path.isdir(f)][:1]
    if smi and os.path.dirname(smi) == "/usr/local/nvidia/bin" and os.path.isdir("/usr/local/nvidia/lib64"):
        folders.append("/usr/local/nvidia/lib64")
    return folders


def watched(env: Mapping[str, str]) -> list[str]:
    """Paths whose change may change any answer above: for the cache."""
    path = [_lasting(p) for p in (env.get("PATH") or os.defpath).split(":") if p]
    return [*path[:50], *_ROOTS, *(env[v] for v in ("CUDA_HOME", "CUDA_PATH") if env.get(v))]


def _lasting(folder: str) -> str:
    """pyenv writes to its folder of shims whenever one of them runs; what they stand for is beside it."""
    parent, name = os.path.split(folder.rstrip("/"))
    return os.path.join(parent, "versions") if name == "shims" and os.path.basename(parent) == ".pyenv" else folder


def _executable(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


def _newest(patterns: tuple[str, ...]) -> Iterator[str]:
    """Folders that match, in the order of the patterns, and of one pattern the highest version first."""
    for pattern in patterns:
        yield from sorted(glob.glob(pattern), key=_version, reverse=True)


def _version(path: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"[0-9]{1,6}", os.path.basename(path)))
