"""``__main__.py`` of the archive and of the folder beside it. Short, because Python compiles a script at each start."""

from __future__ import annotations

import gc
import os
import sys

if sys.version_info < (3, 8):
    sys.exit("fcctl needs Python 3.8 or newer on the host; this is %s" % sys.version.split()[0])
gc.set_threshold(10_000)  # imports make no garbage to look for
place = os.path.dirname(os.path.abspath(__file__))
if sys.path[0] != place:
    sys.path.insert(0, place)  # an isolated Python leaves out the folder of its script

from fcctl_remote.start import start  # noqa: E402

if __name__ == "__main__":
    sys.exit(start(place))
