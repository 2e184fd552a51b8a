"""Dask's settings for a search: quiet, with a key of its own, and nothing that runs beside a timing."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import shutil
import warnings
from typing import Any, Dict, Iterator, Optional

from fcctl_remote.base.programs import run
from fcctl_tune.errors import TuneError

#: Seconds for a new key.
OPENSSL_S = 30.0
#: Tries of a trial whose workers die; then it is lost.
TRIES = 3
SETTINGS: Dict[str, Any] = {
    "distributed.admin.system-monitor.disk": False,
    "distributed.admin.system-monitor.gil.enabled": False,
    "distributed.admin.tick.limit": "1h",  # a busy machine is no news
    "distributed.comm.timeouts.connect": "30s",
    "distributed.comm.timeouts.tcp": "60s",
    "distributed.diagnostics.nvml": False,  # no worker but the server of trials touches a GPU
    "distributed.scheduler.allowed-failures": TRIES - 1,
    "distributed.scheduler.work-stealing": False,  # a task's slot is chosen once
    "distributed.worker.daemon": False,
    "distributed.worker.profile.enabled": False,
}


@contextlib.contextmanager
def applied(**more: Any) -> Iterator[None]:
    """With these settings and ``more``, and only critical messages of Dask. Raises: TuneError, if it is missing."""
    try:
        import dask

        if importlib.util.find_spec("distributed") is None:
            raise ImportError("No module named 'distributed'")
    except ImportError as error:
        raise TuneError("the search needs Dask distributed: %s" % error, "pip install 'fcctl[tune]'") from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with dask.config.set({**SETTINGS, **more}):
            import distributed  # noqa: F401 - its configuration is in place before it is imported

            for name in ("distributed", "distributed.worker", "distributed.scheduler", "tornado", "bokeh"):
                logging.getLogger(name).setLevel(logging.CRITICAL)
            # At a stop our client closes first, which the scheduler calls critical.
            logging.getLogger("distributed.scheduler").setLevel(logging.CRITICAL + 1)
            yield


def version() -> str:
    """Of Dask distributed; all hosts of a search must have the same."""
    return str(importlib.import_module("distributed").__version__)


def certificate() -> Optional[str]:
    """A new key with its certificate, as PEM, by ``openssl``; None where that is missing.

    Who can connect to a scheduler can run anything there: on loopback every user, with a key only who can read it.
    """
    openssl = shutil.which("openssl")
    if openssl is None:
        return None
    argv = [
        openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30",
        "-subj", "/CN=fcctl-tune", "-keyout", "-", "-out", "-",
    ]  # fmt: skip
    made = run(argv, OPENSSL_S)
    return made.out if made.ok and made.out else None


def security(pem: Optional[str]) -> Any:
    """``distributed.Security`` for a key with its certificates; None without one."""
    if pem is None:
        return None
    from distributed.security import Security

    roles = {f"tls_{role}_{part}": pem for role in ("client", "scheduler", "worker") for part in ("cert", "key")}
    return Security(require_encryption=True, tls_ca_file=pem, **roles)  # type: ignore[no-untyped-call]
