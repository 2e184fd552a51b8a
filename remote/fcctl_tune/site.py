"""Where a worker's machine builds, if it is another than the one that searches: its own folders stand in."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from typing import Optional

from fcctl_tune.tasks import Recipe

#: Tells workers their :class:`Site`, as JSON.
VARIABLE = "FCCTL_TUNE_SITE"


@dataclass(frozen=True)
class Site:
    """``folder`` is for builds and logs; ``source`` names the content of ``cwd`` that is built from."""

    cwd: str
    folder: str
    source: str

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))


def at_home(recipe: Recipe) -> Recipe:
    """``recipe`` as it is carried out on this machine."""
    here = _here()
    return recipe if here is None else dataclasses.replace(recipe, **dataclasses.asdict(here))


def _here() -> Optional[Site]:
    text = os.environ.get(VARIABLE)
    return Site(**json.loads(text)) if text else None
