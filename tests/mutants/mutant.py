"""A mutant: one deliberate error in the package, and the test that must notice it."""

import shutil
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).resolve().parents[2] / "gspo_cli"


class Mutant(NamedTuple):
    """An error that somebody could make."""

    name: str
    """Its name; an M and a number where it belongs to the project's list of classic errors."""
    file: str
    """Within the package."""
    old: str
    """Text that stands there exactly once ..."""
    new: str
    """... and what stands there instead."""
    killer: str
    """The tests of which one must fail, from the folder `tests`: a file or `file::test`."""
    only: str = ""
    """Of these, the ones pytest's -k picks; it saves time."""

    @property
    def module(self) -> str:
        """The mutated module's name."""
        return "gspo_cli." + self.file.removesuffix(".py").replace("/", ".")

    def fault(self) -> str | None:
        """Why the mutant no longer fits the source, if it does not."""
        count = (PACKAGE / self.file).read_text(encoding="utf-8").count(self.old)
        return None if count == 1 else f"{self.name}: its text stands {count} times in gspo_cli/{self.file}, not once"

    def plant(self, folder: Path) -> None:
        """A copy of the package with the error, under `folder`."""
        shutil.copytree(PACKAGE, folder / "gspo_cli", ignore=shutil.ignore_patterns("__pycache__"))
        path = folder / "gspo_cli" / self.file
        path.write_text(path.read_text(encoding="utf-8").replace(self.old, self.new), encoding="utf-8")
