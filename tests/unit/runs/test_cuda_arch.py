"""What is compiled for before the GPU is there to be asked."""

from __future__ import annotations

import pytest

from orchestrator.machines.targets import GcpTarget, LocalTarget, SandboxTarget, SshTarget, Target
from orchestrator.runs.job import cuda_arch


def gcp(machine_type: str, **accelerators: int) -> GcpTarget:
    named = {name.replace("_", "-"): count for name, count in accelerators.items()}
    return GcpTarget(name="t", project="my-project", instance="vm", zones=["us-west1-c"], machine_type=machine_type,
                     accelerators=named)  # fmt: skip


@pytest.mark.parametrize(
    ("target", "arch"),
    [
        (gcp("g2-standard-4"), "89"),
        (gcp("a2-highgpu-1g"), "80"),
        (gcp("a3-highgpu-8g"), "90"),
        (gcp("n1-standard-4", nvidia_tesla_t4=1), "75"),
        (gcp("n1-standard-4", something_new=1), "89"),
        (gcp("z9-standard-4"), "89"),
        (SandboxTarget(name="sandbox"), "89"),
        (SshTarget(name="box", host="box"), "89"),
        (LocalTarget(name="local"), "89"),
    ],
)
def test_of_target(target: Target, arch: str) -> None:
    assert cuda_arch.of_target(target) == arch


def test_dotted() -> None:
    assert [cuda_arch.dotted(arch) for arch in ("89", "120")] == ["8.9", "12.0"]
