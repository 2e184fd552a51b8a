"""``fcctl emulator``: a Compute Engine of one's own, until Ctrl-C."""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator.cli.context import Cli, CliCommand

_GCLOUD = """\
gcloud uses it with these variables:
  export CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE={url}/compute/v1/
  export CLOUDSDK_AUTH_DISABLE_CREDENTIALS=true CLOUDSDK_CORE_CHECK_GCE_METADATA=false
  export CLOUDSDK_CORE_PROJECT=any-project CLOUDSDK_COMPUTE_ZONE=us-central1-a CLOUDSDK_CONFIG=$(mktemp -d)
Ctrl-C stops it and every instance."""


@click.command(cls=CliCommand)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port on 127.0.0.1; 0 chooses a free one.")
@click.option(
    "--state", type=click.Path(path_type=Path, file_okay=False), help="Folder in which to store the instances."
)
@click.option("--faults", type=click.Path(path_type=Path), help="YAML file with the faults and latencies to emulate.")
@click.option("--for", "seconds", type=click.FloatRange(0), metavar="SECONDS", help="Stop after this time.")
@click.option(
    "--idle", type=click.FloatRange(0), metavar="MINUTES", help="Stop when no instance has run for this time."
)
@click.option("--stop", is_flag=True, help="Stop the background emulator of the target `sandbox`.")
def emulator(
    cli: Cli, port: int, state: Path | None, faults: Path | None, seconds: float | None, idle: float | None, stop: bool,
) -> None:  # fmt: skip
    """Emulate the part of Compute Engine that fcctl uses; instances are sshd processes on this machine.

    Prints the URL that clients use as their API endpoint. It needs no account and costs nothing. Without --state, all
    data is deleted when it stops. docs/emulator.md lists what it supports, and how to script faults.

    With --stop: stop the emulator that `--on sandbox` started, and its instances.
    """
    if stop:
        _stop(cli)
        return
    from orchestrator.emulator.daemon import wait_until_stopped
    from orchestrator.emulator.emulator import Emulator
    from orchestrator.emulator.scenario import Scenario, load

    scenario = load(faults) if faults is not None else Scenario()
    with Emulator(state, port=port, scenario=scenario) as cloud:
        if not cli.show({"url": cloud.url, "state": None if state is None else str(state.resolve())}):
            click.echo(cloud.url)
            cli.note(_GCLOUD.format(url=cloud.url))
        idle_s = None if idle is None else idle * 60
        wait_until_stopped(cloud, idle_s=idle_s, seconds=seconds, record=None)


def _stop(cli: Cli) -> None:
    from orchestrator.machines.sandbox import Sandbox

    stopped = Sandbox().stop()
    cli.show({"stopped": stopped})
    cli.note("the sandbox is stopped" if stopped else "the sandbox was not running")
