"""``python -m tests.power_cut``: the table of subjects, their operations and crash states; and what was not kept.

With ``--processes [MOMENTS]`` the scenarios of real processes, the power failing at so many moments of each.
"""

from __future__ import annotations

import sys
import time

from tests.power_cut.play import play
from tests.power_cut.processes import table
from tests.power_cut.recorded import why_not
from tests.power_cut.subjects import SUBJECTS
from tests.power_cut.whole_runs import EPISODES, play_power_cut


def main() -> int:
    faults = real_processes() if sys.argv[1:2] == ["--processes"] else subjects()
    for fault in faults:
        print(f"\n{fault}")
    return bool(faults)


def real_processes() -> list[str]:
    if reason := why_not():
        return [reason]
    return table(*map(int, sys.argv[2:3]))


def subjects() -> list[str]:
    began, operations, states = time.process_time(), 0, 0
    faults: list[str] = []
    print(f"{'subject':<18}{'operations':>11}{'crash states':>14}{'seconds':>9}")
    for subject in SUBJECTS:
        at = time.process_time()
        result = play(subject(), 3)
        print(f"{subject.__name__:<18}{result.operations:>11}{result.states:>14}{time.process_time() - at:>9.2f}")
        operations, states = operations + result.operations, states + result.states
        faults += [f"{subject.__name__}: {fault}" for fault in result.violations]
    print(f"{'all':<18}{operations:>11}{states:>14}{time.process_time() - began:>9.2f}")
    at = time.process_time()
    faults += filter(None, map(play_power_cut, range(EPISODES)))
    print(f"{'whole runs':<18}{'':>11}{EPISODES:>14}{time.process_time() - at:>9.2f}")
    return faults


if __name__ == "__main__":
    sys.exit(main())
