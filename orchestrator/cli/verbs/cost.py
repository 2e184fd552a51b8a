"""``fcctl cost``: what a run would cost, and the prices that count."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from orchestrator import app
from orchestrator.base.errors import BooksDiffer, NotFoundError, did_you_mean
from orchestrator.base.run_id import slug
from orchestrator.cli.context import Cli
from orchestrator.cli.options import Finite

if TYPE_CHECKING:
    from orchestrator.money.prices.table import PriceTable


@click.group()
def cost() -> None:
    """Dollars: the plan of a run before it starts, and the price table."""


@cost.command()
@click.argument("job")
@click.option("--on", "target", metavar="TARGET", help="Where to run; the workspace's default target otherwise.")
@click.option("--zones", is_flag=True, help="Also each zone and price model that a start may end in.")
@click.option("--steps", metavar="A..B", help="Only these steps, as in `fcctl run`.")
@click.option("--accept-old-prices", is_flag=True, help="Plan with list prices that are older than a year.")
@click.pass_obj
def plan(cli: Cli, job: str, target: str | None, zones: bool, steps: str | None, accept_old_prices: bool) -> None:
    """What a run of JOB would cost, by activity: expected, from earlier runs of it there, and at the worst.

    Nothing is started, sent or asked of a cloud: a machine is priced as this computer saw it last, else as its target
    describes it. `fcctl run --dry-run` asks the cloud.
    """
    from orchestrator.money.prices.rates import old_prices, price_age
    from orchestrator.runs.cost.estimate import as_last_seen, cost_plan

    workspace = cli.workspace()
    on = workspace.target(target)
    with cli.services() as services:
        budget, now = as_last_seen(services, on, workspace.config.budget), services.clock.now()
        made = cost_plan(services.store, workspace.jobs.get(job), on, budget, steps)
    old = old_prices(on, budget, now, accepted=accept_old_prices)
    age = price_age(on, budget, now)
    prices = {"date": age.date, "age_days": age.days} if age is not None else None
    if cli.show({**made.as_json(), "prices": prices}):
        return
    from orchestrator.views.tables.money import print_cost_plan

    print_cost_plan(made, cli.console, zones=zones)
    if old is not None:
        cli.note(f"note: {old}")


@cost.command()
@click.option("--region", metavar="REGION", help="Only this region; else all.")
@click.option("--refresh", is_flag=True, help="First fetch today's from Google's price catalogue, and keep them.")
@click.pass_obj
def prices(cli: Cli, region: str | None, refresh: bool) -> None:
    """The prices that costs are computed with, their date and their source.

    A target's or the budget's own usd_per_hour is stronger than the table. --refresh needs google-cloud-billing and
    Application Default Credentials; no permission on any project.
    """
    table = app.price_table(refresh=refresh)
    known = table.region_names()
    if region is not None and region not in known:
        raise NotFoundError(f"no prices for the region '{region}'", hint=did_you_mean(region, known))
    regions = [region] if region else known
    if cli.show(_as_json(table, regions)):
        return
    from orchestrator.views.tables.money import print_prices

    print_prices(table, regions, cli.console)


@cost.command()
@click.option(
    "--by",
    type=click.Choice(["day", "week", "month", "job", "target", "activity", "run", "machine"]),
    default="day",
    show_default=True,
    help="What is summed up.",
)
@click.option("--csv", "as_csv", is_flag=True, help="Every line of the ledger as CSV.")
@click.option("--lines", is_flag=True, help="With --json: every line, not only the sums.")
@click.pass_obj
def ledger(cli: Cli, by: str, as_csv: bool, lines: bool) -> None:
    """What was spent: each billed second with its run and its activity, or idle; and disks, snapshots and addresses.

    Days, weeks and months are UTC's, or those of [budget] timezone. What the sandbox would have cost is not summed up.
    What is estimated, an upper bound or without a price is said below the sums. No cloud is asked: `fcctl hosts audit`
    does that, and corrects the ledger.
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
@click.option(
    "--billing-export",
    "export",
    required=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Google's lines: the detailed BigQuery export, as CSV or as JSON lines.",
)
@click.option(
    "--tolerance",
    type=Finite(min=0, max=100),
    default=5.0,
    show_default=True,
    metavar="PERCENT",
    help="By how much the sums of one machine, disk or snapshot may differ; 5 cents always may.",
)
@click.pass_obj
def reconcile(cli: Cli, export: Path, tolerance: float) -> None:
    """The ledger beside Google's own billing lines, by machine and day; exit code 11 if they differ.

    Compared over the time that the file covers, by UTC days of use, before credits. Lines of resources that are not
    this workspace's are only counted. No cloud is asked. docs/ledger.md has the query that makes the file.
    """
    from orchestrator.hosts.reconcile import reconcile_with_export
    from orchestrator.runs.job.prepare import tree_name
    from orchestrator.views.tables.audit import comparison_json, print_comparison

    workspace = cli.workspace()
    label = slug(tree_name(workspace.config.project.name, workspace.root))[:63]
    with cli.services() as services:
        comparison = reconcile_with_export(services, workspace.config.targets.values(), label, export, tolerance)
    cli.show(comparison_json(comparison), lambda: print_comparison(comparison, cli.console))
    if comparison.differing:
        raise SystemExit(BooksDiffer.exit_code)


@cost.command()
@click.pass_obj
def budget(cli: Cli) -> None:
    """The caps of [budget]: what is spent of each, reserved and free; each open reservation, and a forecast.

    A reservation is named with what it has cost so far, as an estimate, and with the command that ends it. The forecast
    to the end of the month is what is spent and reserved, the machines at this month's average of a day, and disks,
    snapshots and addresses as they are now. No cloud is asked.
    """
    from orchestrator.runs.cost.outlook import outlook
    from orchestrator.views.tables.money import budget_json, print_budget

    with cli.services() as services:
        balance = outlook(services)
    cli.show(budget_json(balance), lambda: print_budget(balance, cli.console))


@cost.command()
@click.option("--dry-run", is_flag=True, help="Say what would be added; change nothing.")
@click.pass_obj
def rebuild(cli: Cli, dry_run: bool) -> None:
    """Add to the book of spending what this workspace knows and the book does not have.

    That is what runs in results/ cost, when the machines of its sessions were on, and what active runs and sessions may
    cost. Lines of the book that cannot be read are moved to a file beside it. Facts that nothing here has are listed.
    It may be repeated, and asks no cloud: `fcctl hosts audit` does.
    """
    from orchestrator.runs.cost.rebuild import rebuild as workflow
    from orchestrator.views.tables.audit import print_rebuilt, rebuilt_json

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
        "currency": "USD",
        "source": table.source,
        "date": table.date,
        "address_in_use_hour": ADDRESS_IN_USE_USD_PER_HOUR,
        "regions": rows,
    }
