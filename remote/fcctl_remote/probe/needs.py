"""Whether a step's needs are met, asked just before it starts."""

from __future__ import annotations

from collections.abc import Mapping

from fcctl_remote.base.programs import which
from fcctl_remote.probe import container, cuda, gpu, host, pythons
from fcctl_remote.probe.checks import version_of
from fcctl_remote.wire import Needs

_HINTS = {
    "nvcc": "install the CUDA toolkit (Ubuntu: sudo apt install cuda-toolkit-12-9), or set CUDA_HOME",
    "ncu": "install Nsight Compute (Ubuntu: sudo apt install cuda-nsight-compute-12-9)",
    "torch": "python3 -m pip install torch, or set FCCTL_PYTHON to a Python with torch",
    "cxx": "install a C++ compiler (Ubuntu: sudo apt install g++; macOS: xcode-select --install)",
    "compute-sanitizer": "install compute-sanitizer, a part of the CUDA toolkit (Ubuntu: sudo apt install "
    "cuda-sanitizer-12-9)",
    "cuobjdump": "install cuobjdump, a part of the CUDA toolkit (Ubuntu: sudo apt install cuda-cuobjdump-12-9)",
}


def check_needs(needs: Needs, env: Mapping[str, str]) -> tuple[str, str] | None:
    """None if the machine has what is needed, else what is missing and how to get it. ``env``: the step's."""
    for tool in needs.tools:
        if not _has(tool, env):
            hint = _HINTS.get(tool, "install it: sudo apt install %s (macOS: brew install %s)" % (tool, tool))
            if tool == "nvcc" and env.get(container.IMAGE):
                hint = container.hint(env[container.IMAGE], env)
            return "this machine has no %s" % ("C++ compiler" if tool == "cxx" else tool), hint
    if needs.gpu or needs.compute_capability:
        return _gpu(needs, env)
    return None


def _has(tool: str, env: Mapping[str, str]) -> bool:
    if tool == "torch":
        answer = pythons.ask(env.get("FCCTL_PYTHON") or "python3", env)
        return answer is not None and isinstance(answer.get("torch"), str)
    if tool == "cxx":
        return host.cxx(env) is not None
    return which(tool, env) is not None


def _gpu(needs: Needs, env: Mapping[str, str]) -> tuple[str, str] | None:
    smi = cuda.nvidia_smi(env)
    answer = gpu.query(smi, env) if smi else None
    if answer is None or not answer.rows:
        if gpu.visible():
            complaint = answer.complaint if answer else "nvidia-smi is not installed"
            return "the GPU cannot be used: %s" % complaint, "see the reason: fcctl preflight"
        return "this machine has no NVIDIA GPU", "choose a GPU target: --on NAME"
    if not needs.compute_capability:
        return None
    capability = gpu.capability(answer.rows, env)
    least = version_of(needs.compute_capability)
    if not least:
        return "compute_capability '%s' is not a version" % needs.compute_capability, 'write it as "8.9"'
    if version_of(capability) < least:
        message = "the GPU has compute capability %s; the step needs %s or higher" % (
            capability,
            needs.compute_capability,
        )
        return message, "choose a target with a newer GPU: --on NAME"
    return None
