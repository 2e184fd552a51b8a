"""How data is checked as it comes in: what a person wrote, and what fcctl itself kept.

Either kind's checks are put together when they are used first, not when the class is imported: a command imports many
and uses few of them. So a default that is itself such data is made by a factory.
"""

from __future__ import annotations

from pydantic import ConfigDict

#: By a person: a key that is not known is a mistake.
WRITTEN = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)
#: By this or another version of fcctl: what this one does not know is passed over.
KEPT = ConfigDict(extra="ignore", frozen=True, defer_build=True)
