"""``python -m fcctl_tune run SPEC.json --out DIR``: search; ``member``: build and time for a search elsewhere.

Exit codes of ``run``: 0 done, also if nothing beats the default; 1 no configuration works; 2 usage or spec; 69 this
machine lacks something; 143 told to stop, and what was found is written.
"""

from __future__ import annotations

import sys
from typing import List, Optional


def main(argv: Optional[List[str]] = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    verb, rest = (words[0] if words else ""), words[1:]
    if verb == "run":
        from fcctl_tune.engine.command import main as run

        return run(rest)
    if verb == "member":
        from fcctl_tune.workers.member import main as member

        return member(rest)
    print("usage: python -m fcctl_tune {run,member} ...   (each has --help)", file=sys.stderr)
    return 0 if verb in ("-h", "--help") else 2


if __name__ == "__main__":
    sys.exit(main())
