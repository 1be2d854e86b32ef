"""A stage's folder as readers see it: its marker, the generations before, and what is known of the run that made it."""

from dataclasses import dataclass
from typing import Any

from etl.errors import UsageError
from etl.generations import Generation, difference, kept_place
from etl.storage import Place

RUN_FILE = "run.json"
WORK_FOLDER = "_work"
PLAN_FILE = "plan.json"


@dataclass
class Finished:
    """One stage's folder. ``name`` is its command, ``marker_name`` its marker's file name.

    ``elsewhere`` says what to do for a second one beside it.
    """

    name: str
    folder: Place
    marker_name: str
    format: str
    elsewhere: str = "use another place"

    @property
    def marker(self) -> Place:
        return self.folder / self.marker_name

    @property
    def work(self) -> Place:
        return self.folder / WORK_FOLDER

    @property
    def plan(self) -> Place:
        return self.work / PLAN_FILE

    def read_marker(self) -> dict[str, Any]:
        """The marker of this finished stage.

        Raises UsageError where the stage is not finished, or was written by another version of ringslice.
        """
        return self.read_generation().marker

    def read_generation(self) -> Generation:
        """The current marker with its fingerprint. Raises as `read_marker` does."""
        if not self.marker.exists():
            raise UsageError(
                f"{self.folder} holds no finished {self.name} (no {self.marker_name}); run: ringslice {self.name}"
            )
        return self._checked(self.marker, Generation.read(self.marker))

    def find_generation(self, fingerprint: str) -> dict[str, Any] | None:
        """The marker with this fingerprint, the current one or one that was kept; None where there is none.

        Raises UsageError where it was written by another version of ringslice.
        """
        kept = kept_place(self.folder, fingerprint)
        for place in (self.marker, kept):
            if place is not None and place.exists():
                found = Generation.read(place)
                if found.fingerprint == fingerprint:
                    return self._checked(place, found).marker
        return None

    def _checked(self, place: Place, found: Generation) -> Generation:
        if found.marker.get("format") != self.format:
            raise UsageError(
                f"{place} has format {found.marker.get('format')!r}, this version reads {self.format!r};"
                f" use the ringslice that wrote it, or run {self.name} again with --overwrite"
            )
        return found

    def fingerprint(self) -> str:
        """SHA-256 of the marker: what the next stage records as its input."""
        return self.marker.sha256()

    def read_run(self) -> dict[str, Any]:
        """What is known of the run that made this stage; empty where nothing is."""
        place = self.folder / RUN_FILE
        return place.read_json() if place.exists() else {}

    def refuse_another(self, marker: dict[str, Any], identity: dict[str, Any]) -> None:
        """Raise UsageError where ``marker`` differs from ``identity``."""
        if what := difference(marker, identity):
            raise UsageError(
                f"{self.folder} already holds another {self.name} ({what});"
                f" {self.elsewhere}, or --overwrite to replace it"
            )
