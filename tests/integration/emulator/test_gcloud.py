"""The real gcloud against the emulator."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.emulator.emulator import Emulator

GCLOUD = shutil.which("gcloud")
pytestmark = [pytest.mark.full, pytest.mark.skipif(GCLOUD is None, reason="gcloud is not installed")]
Gcloud = Callable[..., str]


@pytest.fixture
def gcloud(tmp_path: Path) -> Callable[[Emulator], Gcloud]:
    """``gcloud(emulator)("instances", "list")``: its standard output; a failure fails the test."""

    def aimed(emulator: Emulator) -> Gcloud:
        environment = {
            **os.environ,
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": f"{emulator.url}/compute/v1/",
            "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true",
            "CLOUDSDK_CORE_PROJECT": "proj",
            "CLOUDSDK_COMPUTE_ZONE": "us-central1-a",
            "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
            "CLOUDSDK_CORE_CHECK_GCE_METADATA": "false",
            "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true",
            "CLOUDSDK_CONFIG": str(tmp_path / "gcloud"),
        }

        def call(*argv: str, code: int = 0) -> str:
            done = subprocess.run(
                [str(GCLOUD), "compute", *argv], env=environment, capture_output=True, text=True, check=False,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
            assert done.returncode == code, f"gcloud compute {' '.join(argv)}:\n{done.stdout}{done.stderr}"
            return done.stdout.strip() + (done.stderr if code else "")

        return call

    return aimed


@pytest.mark.timeout(900)  # gcloud starts seventeen times
def test_the_life_of_a_machine(gcloud: Callable[[Emulator], Gcloud]) -> None:
    with Emulator() as emulator:
        call = gcloud(emulator)
        call(
            "instances", "create", "vm", "--no-service-account", "--no-scopes", "--machine-type=g2-standard-4",
            "--image-family=common-cu129-ubuntu-2204-nvidia-580", "--image-project=deeplearning-platform-release",
            "--maintenance-policy=TERMINATE", "--no-restart-on-failure", "--metadata=enable-guest-attributes=TRUE",
            "--max-run-duration=3600s", "--instance-termination-action=STOP", "--labels=fcctl=yes",
        )  # fmt: skip

        def shown(field: str) -> str:
            return call("instances", "describe", "vm", f"--format=value({field})")

        assert shown("status,scheduling.maxRunDuration.seconds") == "RUNNING\t3600"
        assert call("instances", "list", "--filter=labels.fcctl=yes", "--format=value(name,EXTERNAL_IP)").split() == [
            "vm",
            "127.0.0.1",
        ]
        assert "ssh-ed25519" in call("instances", "get-guest-attributes", "vm", "--query-path=hostkeys/")
        call("instances", "add-labels", "vm", "--labels=a=b")
        call("instances", "add-metadata", "vm", "--metadata=k=v")
        assert emulator.machine("vm").resource["labels"] == {"a": "b", "fcctl": "yes"}
        assert emulator.machine("vm").metadata()["k"] == "v"
        call("instances", "suspend", "vm")
        assert emulator.machine("vm").status == "SUSPENDED"
        call("instances", "resume", "vm")
        assert emulator.machine("vm").status == "RUNNING"
        call("instances", "stop", "vm")
        assert emulator.machine("vm").status == "TERMINATED"
        call(
            "instances", "set-scheduling", "vm", "--max-run-duration=2h", "--instance-termination-action=STOP",
            "--maintenance-policy=TERMINATE", "--no-restart-on-failure",
        )  # fmt: skip
        call("instances", "start", "vm")
        assert shown("status,scheduling.maxRunDuration.seconds") == "RUNNING\t7200"
        call("instances", "stop", "vm")
        call("instances", "set-machine-type", "vm", "--machine-type=g2-standard-8")
        call(
            "instances", "create", "vm2", "vm3", "--no-service-account", "--no-scopes", "--machine-type=g2-standard-4",
            "--maintenance-policy=TERMINATE",
        )  # fmt: skip
        kinds = call("operations", "list", "--filter=targetLink~vm$", "--format=value(operationType)").split()
        assert kinds[0] == "insert"
        assert kinds[-1] == "setMachineType"
        call("instances", "delete", "vm", "vm2", "vm3")  # in one batch
        assert not emulator.world.machines
