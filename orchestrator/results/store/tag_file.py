"""``results/tags.toml`` on disk: read, and changed by one process at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from orchestrator.base.files import alone_in, disk_errors, make_folders, write_atomic
from orchestrator.results import tags
from orchestrator.results.tags import Tag


class TagFile:
    """In the folder ``root``, beside the runs."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._path = root / tags.FILE

    def read(self) -> dict[str, Tag]:
        """All tags by name; none if there is no file. Raises ConfigError: the file is damaged."""
        try:
            with self._path.open("rb") as stream:
                text = stream.read(tags.MAX_BYTES).decode()
        except FileNotFoundError:
            return {}
        except UnicodeDecodeError:
            text = "\0"  # no TOML either
        except OSError:
            with disk_errors("read the tags", self._path):
                raise
        return tags.parse(text, str(self._path))

    def change(self, how: Callable[[dict[str, Tag]], dict[str, Tag]]) -> None:
        """Replace the tags by what ``how`` makes of them; nobody else changes them meanwhile. Raises ConfigError: the
        file is damaged; it is left as it is; FcctlError: it cannot be written."""
        with disk_errors("write the tags", self._root):
            make_folders(self._root)
            with alone_in(self._root):
                old = self.read()
                new = how(old)
                if new != old:
                    write_atomic(self._root, tags.FILE, tags.render(new).encode())
