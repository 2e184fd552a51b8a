"""Settings of pydantic models. Validators are built on first use, so a default that is a model needs a factory."""

from __future__ import annotations

from pydantic import ConfigDict

#: By a person: a key that is not known is a mistake.
WRITTEN = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)
#: By this or another version of fcctl: what this one does not know is passed over.
KEPT = ConfigDict(extra="ignore", frozen=True, defer_build=True)
