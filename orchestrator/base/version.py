"""Which fcctl this is."""

from __future__ import annotations


def version() -> str:
    """The installed version, or that of the source tree next to this package."""
    from importlib import metadata

    try:
        return metadata.version("fcctl")
    except metadata.PackageNotFoundError:
        import tomllib
        from pathlib import Path

        with (Path(__file__).resolve().parents[2] / "pyproject.toml").open("rb") as file:
            return str(tomllib.load(file)["project"]["version"])
