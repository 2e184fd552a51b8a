"""The architecture to compile for when the GPU is not here to be asked."""

from __future__ import annotations

from orchestrator.machines.targets import CloudTarget, SandboxTarget, Target

#: An L4's: the default of a target without a known GPU.
DEFAULT = "89"

#: Compute capabilities of the GPUs that Compute Engine has, https://developer.nvidia.com/cuda-gpus; machine families
#: bring theirs along, the others are attached by name.
_FAMILIES = {"g2": "89", "g4": "120", "a2": "80", "a3": "90", "a4": "100"}
_ACCELERATORS = {
    "nvidia-tesla-p100": "60", "nvidia-tesla-p4": "61", "nvidia-tesla-v100": "70", "nvidia-tesla-t4": "75",
    "nvidia-tesla-a100": "80", "nvidia-a100-80gb": "80", "nvidia-l4": "89", "nvidia-h100-80gb": "90",
}  # fmt: skip


def of_target(target: Target) -> str:
    """What ``FCCTL_CUDA_ARCH`` says on the controller: the target's GPU as ``89``, an L4's where it is not known."""
    if isinstance(target, SandboxTarget) or not isinstance(target, CloudTarget):
        return DEFAULT
    attached = [_ACCELERATORS.get(name) for name in target.accelerators]
    return next((arch for arch in attached if arch), None) or _FAMILIES.get(target.machine_type.split("-")[0], DEFAULT)


def dotted(arch: str) -> str:
    """``89`` as ``8.9``, the way PyTorch's ``TORCH_CUDA_ARCH_LIST`` wants it."""
    return f"{arch[:-1]}.{arch[-1]}"
