"""The workspace's searches, ``tune/*.yaml``, by their names and those of their variants."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.base.errors import NotFoundError, did_you_mean
from orchestrator.base.files import line_of, read_bounded
from orchestrator.base.models import Problem
from orchestrator.tune import search_file as tune_file
from orchestrator.tune.search_file import InvalidSearch, Search, SearchFile

FOLDER = "tune"


@dataclass(frozen=True)
class TuneFiles:
    root: Path

    @property
    def folder(self) -> Path:
        return self.root / FOLDER

    def names(self) -> list[str]:
        """Every name of a search, sorted, also of invalid files."""
        variants = (search.variants[1] for search in self.readable() if search.variants)
        return sorted({path.stem for path in self.files()}.union(*variants))

    def get(self, name: str, space: Path | None = None) -> Search:
        """The search or variant ``name``, with the space of another file, if given. Raises NotFoundError: there is
        none; the hint has the nearest name; InvalidSearch: its file is wrong, or two files have that variant."""
        own = self.folder / f"{name}.yaml"
        if tune_file.NAME.fullmatch(name) and own.is_file():
            return self.read(own, name, space)
        searches = [s for s in self.readable() if s.variants and name in s.variants[1]]
        if len(searches) == 1:
            return self.read(self.root / searches[0].file, space=space).called(name)
        if searches:
            problem = f"'{name}' is a variant of {' and of '.join(s.file for s in searches)}"
            raise InvalidSearch([Problem(f"{searches[0].file}:1", problem, "rename the variant in one of these files")])
        names = self.names()
        hint = did_you_mean(name, names) if names else "how to write one: fcctl help tune"
        raise NotFoundError(f"no search named '{name}'", cause=f"{FOLDER}/{name}.yaml does not exist", hint=hint)

    def read(self, path: Path, name: str | None = None, space: Path | None = None) -> Search:
        """Any search file, with the space of another, if given. Raises: NotFoundError, InvalidSearch."""
        given = self._sheet(space) if space else None
        return tune_file.parse(self._sheet(path), name, given)

    def check(self, path: Path) -> list[Problem]:
        """All that is wrong with a search's file."""
        try:
            self.read(path, path.stem)
        except InvalidSearch as error:
            return list(error.problems)
        return []

    def holds(self, path: Path) -> bool:
        """Whether it is in the folder of searches."""
        return path.resolve().parent == self.folder.resolve()

    def files(self) -> list[Path]:
        """The files of all searches."""
        return sorted(path for path in self.folder.glob("*.yaml") if not path.name.startswith(".") and path.is_file())

    def readable(self) -> Iterator[Search]:
        """Those of the folder that are valid."""
        for path in self.files():
            try:
                yield self.read(path)
            except (InvalidSearch, NotFoundError):  # it was just deleted
                continue

    def _sheet(self, path: Path) -> SearchFile:
        shown = str(path.relative_to(self.root)) if path.is_relative_to(self.root) else str(path)
        try:
            return SearchFile.read(read_bounded(path), shown)
        except FileNotFoundError:
            raise NotFoundError(f"the file {shown} does not exist", hint=f"see the files: ls {FOLDER}/") from None
        except UnicodeDecodeError as error:
            line = line_of(error)
            raise InvalidSearch([Problem(f"{shown}:{line}", "not UTF-8 text")]) from None
        except OSError as error:
            raise InvalidSearch([Problem(f"{shown}:1", f"cannot be read: {error.strerror}")]) from error
