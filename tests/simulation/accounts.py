"""What the simulated cloud billed in a day, a month, or ever. It is the cloud's own account, not the ledger's."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal

from tests.simulation.cloud import SimulatedCloud
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.episode import Episode, Workspace

#: Dollars an hour of every machine.
RATE = 0.72
Over = Literal["day", "month", "project"]
Window = tuple[float, float]


def window_of(over: Over, when: float) -> Window:
    """The day or month of UTC that ``when`` is in: (from, until), epoch seconds."""
    if over == "project":
        return 0.0, float("inf")
    local = datetime.fromtimestamp(when, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    first = local if over == "day" else local.replace(day=1)
    after = (first + timedelta(days=1 if over == "day" else 32)).replace(hour=0)
    return first.timestamp(), (after if over == "day" else after.replace(day=1)).timestamp()


def same_window(over: Over, one: float, other: float) -> bool:
    return window_of(over, one) == window_of(over, other)


def spent_within(cloud: SimulatedCloud, window: Window) -> float:
    """Dollars for the time that machines were on between two moments. A start bills a minute at least, which counts
    where it began."""
    since, until = window
    seconds = 0.0
    for time in cloud.billed:
        begun = time.since
        off = cloud.world.now if time.until is None else time.until
        if off - begun < 60.0:
            seconds += 60.0 if since <= begun < until else 0.0
        else:
            seconds += max(0.0, min(off, until) - max(begun, since))
    return seconds / 3600 * RATE


def windows(cloud: SimulatedCloud, over: Over) -> set[Window]:
    """Those in which a machine was on."""
    found = set()
    for time in cloud.billed:
        moment, last = time.since, cloud.world.now if time.until is None else time.until
        while True:
            window = window_of(over, moment)
            found.add(window)
            if window[1] > last:
                break
            moment = window[1]
    return found


# --------------------------------------------------------------------------------------------------------------- caps
def check_caps(episode: Episode) -> None:
    """No day, month or project costs more than its cap, by the cloud's own account."""
    for over, cap in episode.schedule.caps.items():
        for window in windows(episode.cloud, over):
            spent = spent_within(episode.cloud, window)
            if spent > cap + beyond_control(episode) + 1e-6:
                raise Violation(f"the {over}'s cap is ${cap}, and ${spent:.4f} were spent within it")


def spent_by(episode: Episode, name: str) -> float:
    """Dollars for the time that machines were on because one process had started them."""
    cloud = episode.cloud
    own = [time for time in cloud.billed if cloud.asked.get(time.operation) == name]
    return sum(map(cloud.seconds, own)) / 3600 * RATE


def check_worst_cases(episode: Episode) -> None:
    """No run costs more than the worst case that was named before it started, whether anybody followed it or not."""
    for name, worst_usd in episode.named.items():
        spent = spent_by(episode, name)
        if spent > worst_usd + beyond_control(episode) + 1e-6:
            raise Violation(f"the run of {name} was to cost ${worst_usd:.4f} at worst, and did cost ${spent:.4f}")


def check_start_fits(episode: Episode, worst_usd: float, workspace: Workspace) -> None:
    """What is about to be started could not break a cap, as far as the cloud's own account goes."""
    for over, cap in episode.schedule.caps.items() if workspace.root == episode.here.root else ():
        spent = spent_within(episode.cloud, window_of(over, episode.world.now))
        if spent + worst_usd > cap + beyond_control(episode) + 1e-6:
            raise Violation(f"the {over}'s cap is ${cap}, ${spent:.4f} are spent, and ${worst_usd:.4f} more is started")


def beyond_control(episode: Episode) -> float:
    """Dollars that fcctl has no say in: a system that is slow to go down is on for so long past its limit; a person's
    own starts have the limit that fcctl set, and nobody counts them."""
    cloud = episode.cloud
    going_down = episode.world.longest_stop_s * len(cloud.billed) * RATE / 3600
    return going_down + sum(limit + 90 for limit in cloud.console_limits) * RATE / 3600
