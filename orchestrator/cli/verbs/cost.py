"""``fcctl cost``: what a run would cost, and the prices that count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import click

from orchestrator.base.errors import NotFoundError, did_you_mean
from orchestrator.cli.context import ON, Cli, CliGroup

if TYPE_CHECKING:
    from orchestrator.machines.targets import Target
    from orchestrator.money.prices.table import PriceTable
    from orchestrator.runs.job.job import Job
    from orchestrator.runs.services import Services


@click.group(cls=CliGroup)
def cost() -> None:
    """Show the cost of a run before it starts, the prices, the ledger and the caps."""


@cost.command()
@click.argument("job")
@ON
@click.option("--zones", is_flag=True, help="Also show every zone and price model in which the machine may start.")
@click.option("--steps", metavar="A..B", help="Only these steps, as in `fcctl run`.")
@click.option("--accept-old-prices", is_flag=True, help="Accept list prices that are older than a year.")
def plan(cli: Cli, job: str, target: str | None, zones: bool, steps: str | None, accept_old_prices: bool) -> None:
    """Show what a run of JOB would cost, by activity: an estimate from earlier runs, and the worst case.

    This starts and sends nothing, and does not query the cloud: the price is that of the machine as this computer saw
    it last, otherwise as fcctl.toml describes it. `fcctl run --dry-run` queries the cloud.
    """
    from orchestrator.money.prices.rates import old_prices, price_age
    from orchestrator.runs.cost.estimate import as_last_seen, cost_plan
    from orchestrator.views.tables.money import print_cost_plan

    workspace = cli.workspace()
    on = workspace.target(target)
    wanted = workspace.jobs.get(job)
    with cli.services() as services:
        budget, now = as_last_seen(services, on, workspace.config.budget), services.clock.now()
        builder = _builder(cli, services, wanted, on, steps)
        if builder is not None:
            budget = as_last_seen(services, builder, budget)
        made = cost_plan(services.store, wanted, on, budget, steps, builder)
    old = old_prices(on, budget, now, accepted=accept_old_prices)
    age = price_age(on, budget, now)
    prices = {"date": age.date, "age_days": age.days} if age is not None else None
    cli.show({**made.as_json(), "prices": prices}, lambda: print_cost_plan(made, cli.console, zones=zones))
    if old is not None:
        cli.note(f"note: {old}")


def _builder(cli: Cli, services: Services, job: Job, on: Target, steps: str | None) -> Target | None:
    """The builder of the target if a run would use it."""
    if on.builder is None:
        return None
    from orchestrator.runs.builder import is_needed
    from orchestrator.runs.job.plan import controller_steps

    needed = is_needed(controller_steps(job, {}, steps), services.cuda_image)
    return cli.workspace().target(on.builder) if needed else None


@cost.command()
@click.option("--region", metavar="REGION", help="Only this region.")
@click.option(
    "--refresh", is_flag=True, help="First download today's prices from Google's price catalogue, and store them."
)
def prices(cli: Cli, region: str | None, refresh: bool) -> None:
    """Show the prices that fcctl computes with, their date and their source.

    usd_per_hour of a target or of [budget] overrides the table. --refresh needs google-cloud-billing and
    Application Default Credentials; no permission on any project.
    """
    from orchestrator.providers.registry import price_table
    from orchestrator.views.tables.money import print_prices

    table = price_table(refresh=refresh)
    known = table.region_names()
    if region is not None and region not in known:
        raise NotFoundError(f"no prices for the region '{region}'", hint=did_you_mean(region, known))
    regions = [region] if region else known
    cli.show(_as_json(table, regions), lambda: print_prices(table, regions, cli.console))


@cost.command()
@click.option("--by", type=click.Choice(["day", "week", "month", "job", "target", "activity", "run", "machine"]),
              default="day", show_default=True, help="Group the sums by this.")  # fmt: skip
@click.option("--csv", "as_csv", is_flag=True, help="Print every ledger entry as CSV.")
@click.option("--lines", is_flag=True, help="With --json: also every ledger entry.")
def ledger(cli: Cli, by: str, as_csv: bool, lines: bool) -> None:
    """Show what was spent: machine time by run and activity, or idle; and disks, snapshots and addresses.

    Days, weeks and months are in UTC, or in the timezone of [budget]. The sums leave out the emulated costs of the
    sandbox. Notes below the sums name entries that are estimates, upper bounds or without a price. This does not query
    the cloud; `fcctl hosts audit` does, and corrects the ledger.
    """

    from orchestrator.money.totals import Grouping, remarks, totals
    from orchestrator.runs.cost.spending import lines as all_lines
    from orchestrator.views.tables import money as tables

    caps = cli.workspace().config.budget
    with cli.services() as services:
        entries = all_lines(services)
    sums, unsure = totals(entries, cast("Grouping", by), caps.zone), remarks(entries)
    if as_csv and not cli.json:
        click.echo(tables.as_csv(entries), nl=False)
    elif cli.json:
        rows = [vars(total) for total in sums]
        every = {"lines": tables.as_json(entries)} if lines else {}
        cli.emit({"by": by, "timezone": caps.timezone, "totals": rows, "remarks": tables.notes_json(unsure), **every})
    else:
        tables.print_totals(sums, by, caps.timezone, cli.console, unsure)


@cost.command()
def budget(cli: Cli) -> None:
    """Show the caps of [budget]: spent, reserved and remaining dollars of each; each open reservation; a forecast.

    Each reservation shows its estimated cost so far and the command that ends it. The forecast to the end of the month
    adds up: spent and reserved dollars, machines at this month's daily average, and the present disks, snapshots and
    addresses. This does not query the cloud.
    """
    from orchestrator.runs.cost.outlook import outlook
    from orchestrator.views.tables.money import budget_json, print_budget

    with cli.services() as services:
        balance = outlook(services)
    cli.show(budget_json(balance), lambda: print_budget(balance, cli.console))


@cost.command()
@click.option("--dry-run", is_flag=True, help="Show what would be added; change nothing.")
def rebuild(cli: Cli, dry_run: bool) -> None:
    """Add missing entries to the cost ledger from the data of this workspace.

    Sources: the costs of runs in results/, the times at which machines of sessions were on, and the worst cases of
    active runs and sessions. Unreadable lines of the ledger are moved to a separate file. Missing data that no source
    has is listed. You can repeat this command. It does not query the cloud; `fcctl hosts audit` does.
    """
    from orchestrator.runs.cost.rebuild import rebuild as workflow
    from orchestrator.views.tables.hosts import print_rebuilt, rebuilt_json

    with cli.services() as services:
        rebuilt = workflow(services, dry_run=dry_run)
    cli.show(rebuilt_json(rebuilt, dry_run=dry_run), lambda: print_rebuilt(rebuilt, cli.console, dry_run=dry_run))


def _as_json(table: PriceTable, regions: list[str]) -> dict[str, Any]:
    from orchestrator.money.prices.table import ADDRESS_IN_USE_USD_PER_HOUR

    rows: dict[str, Any] = {}
    for region in regions:
        disks = {kind: table.disk(kind, region) for kind in ("pd-balanced", "pd-ssd", "pd-standard")}
        snapshot, address = table.snapshot(region), table.unused_address(region)
        rows[region] = {
            "machines": {
                name: {"on_demand": on_demand.usd, "spot": spot.usd, "how": on_demand.how}
                for name, on_demand, spot in table.machines(region)
            },
            "disks_gib_month": {kind: price.usd for kind, price in disks.items() if price is not None},
            "snapshot_gib_month": None if snapshot is None else snapshot.usd,
            "address_unused_hour": None if address is None else address.usd,
        }
    return {
        "currency": "USD", "source": table.source, "date": table.date,
        "address_in_use_hour": ADDRESS_IN_USE_USD_PER_HOUR, "regions": rows,
    }  # fmt: skip
