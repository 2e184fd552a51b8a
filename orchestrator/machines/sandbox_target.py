"""The built-in sandbox: one emulated L4 machine, and its list price."""

from __future__ import annotations

from orchestrator.machines.targets import GcpTarget, SandboxTarget

PROJECT = "fcctl-sandbox"
INSTANCE = "sandbox-l4"
#: The zone of the machine in a new sandbox, and the zones in which it may be created after a deletion.
ZONES = ("us-west1-c", "us-west1-a", "us-central1-a")
MACHINE_TYPE = "g2-standard-4"
IMAGE = "projects/deeplearning-platform-release/global/images/family/common-cu129-ubuntu-2204-nvidia-580"


def as_machine(target: SandboxTarget, api_endpoint: str | None = None) -> GcpTarget:
    """The sandbox's machine as a Compute Engine target; without ``api_endpoint`` only for prices."""
    common = {name: getattr(target, name) for name in type(target).model_fields if name != "kind"}
    return GcpTarget(
        **common,
        project=PROJECT,
        instance=INSTANCE,
        zones=list(ZONES),
        machine_type=MACHINE_TYPE,
        wake_timeout_s=120.0,
        api_endpoint=api_endpoint,
    )
