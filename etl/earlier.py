"""Earlier slices whose splits are kept (``--splits-from``), and lists of keys."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pyarrow.fs import FileType

from etl.errors import UsageError
from etl.known import KnownKeys
from etl.manifest import read_manifest
from etl.stages import Stage, is_folder_name, slices_stage, slices_stage_in
from etl.storage import Place, open_place

NEWEST = "newest"


@dataclass(frozen=True)
class Earlier:
    """Finished slices: their folder, manifest, and its fingerprint."""

    folder: Place
    manifest: Mapping[str, Any]
    fingerprint: str

    @cached_property
    def known(self) -> KnownKeys:
        """Every key that they know, with its split."""
        return KnownKeys.of_slices(self.folder, self.manifest)


def find_earlier(root: Place, text: str | None, own: Stage) -> Earlier | None:
    """The slices that ``text`` names: a manifest, a folder of slices, a name below ``root``, or 'newest'.

    'newest' are the newest finished slices of the root other than ``own``, None where there are no others; a run of
    ``own`` that began is gone on with from those that it began with.

    Raises UsageError where there are none, DataError where their manifest is damaged.
    """
    if text is None:
        return None
    stage = _newest(root, own) if text == NEWEST else _named(root, text)
    return Earlier(stage.folder, read_manifest(stage), stage.fingerprint()) if stage else None


def _named(root: Place, text: str) -> Stage:
    if is_folder_name(text) and slices_stage(root, text).folder.exists():
        return slices_stage(root, text)
    place = open_place(text)
    folder = place if place.info().type == FileType.Directory else place.parent
    stage = slices_stage_in(folder)
    if not stage.marker.exists():
        raise UsageError(
            f"--splits-from {text}: no slices there; give a manifest.json, the folder that holds it,"
            f" the name of slices of {root}, or '{NEWEST}'"
        )
    return stage


def _newest(root: Place, own: Stage) -> Stage | None:
    finished = {stage.fingerprint(): stage for stage in finished_slices(root) if stage.folder != own.folder}
    if (begun := _begun_from(own)) is not None:
        if begun and begun not in finished:
            raise UsageError(
                f"{own.folder} was begun with the splits of slices that are gone; give them by --splits-from MANIFEST,"
                " or --overwrite and another --splits-from"
            )
        return finished.get(begun)
    return max(finished.values(), key=finished_at, default=None)


def _begun_from(own: Stage) -> str | None:
    """The fingerprint of what a run of ``own`` took its splits from, '' where from nothing, None without a run."""
    if own.marker.exists():
        config = own.marker.read_json().get("config", {})
    elif own.plan.exists():
        config = own.plan.read_json()["identity"]["config"]
    else:
        return None
    return config.get("splits_from") or ""


def finished_slices(root: Place) -> Iterator[Stage]:
    """The finished slices of a root."""
    for info in (root / "slices").children():
        if not info.is_file and is_folder_name(info.base_name):
            stage = slices_stage(root, info.base_name)
            if stage.marker.exists():
                yield stage


def finished_at(stage: Stage) -> tuple[str, str]:
    """When slices were finished, to sort by."""
    return stage.read_run().get("finished", ""), stage.folder.path


def read_keys(place: Place) -> list[str]:
    """The keys in a text file of one on each line, sorted, each once. Raises UsageError where it is no such file."""
    try:
        text = place.read_bytes().decode()
    except (FileNotFoundError, UnicodeDecodeError, IsADirectoryError) as error:
        raise UsageError(f"--remove {place}: no text file of keys, one on each line ({error})") from None
    return sorted({line.rstrip("\r") for line in text.split("\n") if line.strip()})
