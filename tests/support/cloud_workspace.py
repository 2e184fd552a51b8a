"""A workspace whose target ``l4`` is a machine of an emulated cloud."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from orchestrator.emulator.emulator import Emulator
from tests.support import forked
from tests.support.prices import write_prices
from tests.support.workspace import Workspace, table

PROJECT = "test-project"
ZONES = ("us-west1-c", "us-west1-a", "us-central1-a")


class CloudWorkspace(Workspace):
    """The target's settings are keyword arguments; caps go below ``[budget]``."""

    imports = forked.CLOUD

    def __init__(
        self, folder: Path, home: Path, cloud: Emulator, instance: str = "vm", cap: float | None = 9.0,
        per_session_usd: float | None = None, **target: Any,
    ) -> None:  # fmt: skip
        super().__init__(folder, home)
        write_prices(home)
        self.cloud = cloud
        self.instance = instance
        values = {
            "kind": "gcp", "project": PROJECT, "instance": instance, "zones": list(ZONES), "api_endpoint": cloud.url,
            "reconnect_s": 20.0, "link_timeout_s": 20.0, **target,
        }  # fmt: skip
        caps = {"per_run_usd": cap, "per_session_usd": per_session_usd}
        given = {key: usd for key, usd in caps.items() if usd is not None}
        with (folder / "fcctl.toml").open("a") as stream:
            stream.write(f"\n{table('targets.l4', values)}\n{table('budget', given)}")

    # ---------------------------------------------------------------------------------------------- behind the API
    def machines(self) -> dict[str, Any]:
        """Zone -> the emulator's own account of each machine of the target's name."""
        with self.cloud.world.lock:
            found = {m.path.split("/")[3]: m for m in self.cloud.world.machines.values()}
            return {zone: m for zone, m in found.items() if m.path.endswith(f"/{self.instance}")}

    def statuses(self) -> dict[str, str]:
        return {zone: machine.status for zone, machine in self.machines().items()}

    def operations(self, kind: str | None = None) -> list[str]:
        """What was done to the machine, oldest first, by whomever."""
        with self.cloud.world.lock:
            rows = sorted(
                (op.resource for op in self.cloud.world.operations.values() if op.target.endswith(f"/{self.instance}")),
                key=lambda row: row["insertTime"],
            )
        kinds = [row["operationType"].removeprefix("compute.instances.") for row in rows]
        return [k for k in kinds if kind in (None, k)]

    def journal(self, run_id: str | None = None) -> list[dict[str, Any]]:
        """The lines of the only run's journal, or of the one that is named."""
        paths = sorted((self.root / "results").glob(f"*/{run_id or '*'}/journal.jsonl"))
        (path,) = [p for p in paths if p.parent.suffix != ".partial"]
        return [json.loads(line) for line in path.read_text().splitlines()]
