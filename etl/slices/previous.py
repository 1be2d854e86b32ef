"""Earlier slices whose splits are kept (``--splits-from``), and lists of keys."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow.fs import FileType

from etl.errors import UsageError
from etl.formats import parquet_tables
from etl.partition.config import SPLIT_NAMES
from etl.partition.permutation import Integers
from etl.slices.manifest import DEPARTED_FILE, EXAMPLES_FILE, read_manifest
from etl.stages.layout import is_folder_name, slices_stage, slices_stage_in
from etl.stages.stage import Stage
from etl.storage.place import Place, open_place

_DIGEST = np.dtype("S16")


class KnownKeys:
    """The keys of a set of slices, and of those before that it remembers, each with its split.

    ``splits`` (int8, by the number that `find` gives) is the split's number in SPLIT_NAMES, -1 for a key that was
    removed before it had any.
    """

    def __init__(self, rows: Iterable[pa.Table]) -> None:
        digests, splits = [np.zeros(0, dtype=_DIGEST)], [np.zeros(0, dtype=np.int8)]
        for table in rows:
            digests.append(digest_keys(table["key"].to_pylist()))
            splits.append(split_numbers(table["split"]))
        unsorted = np.concatenate(digests)
        order = np.argsort(unsorted)
        self._digests = unsorted[order]
        self.splits = np.concatenate(splits)[order]

    @classmethod
    def of_slices(cls, folder: Place, manifest: Mapping[str, Any]) -> "KnownKeys":
        """All that these finished slices know."""
        return cls(_known_rows(folder, manifest))

    def __len__(self) -> int:
        return len(self._digests)

    def find(self, keys: list[str]) -> Integers:
        """The number of each key, -1 for an unknown one: int64 of shape (keys,)."""
        digests = digest_keys(keys)
        if not len(self._digests):
            return np.full(len(keys), -1, dtype=np.int64)
        places = np.minimum(np.searchsorted(self._digests, digests), len(self._digests) - 1)
        return np.where(self._digests[places] == digests, places, -1)


def digest_keys(keys: Iterable[str]) -> npt.NDArray[np.bytes_]:
    """128 bits of BLAKE2b (RFC 7693) of each key: bytes of shape (keys,)."""
    joined = b"".join(hashlib.blake2b(key.encode(), digest_size=16).digest() for key in keys)
    return np.frombuffer(joined, dtype=_DIGEST)


def split_numbers(column: pa.ChunkedArray) -> npt.NDArray[np.int8]:
    """The number of each split name in SPLIT_NAMES, -1 for none: int8 of shape (rows,)."""
    numbers = {name: number for number, name in enumerate(SPLIT_NAMES)}
    return np.array([numbers.get(name, -1) for name in column.to_pylist()], dtype=np.int8)


def removed_keys(folder: Place) -> list[str]:
    """Keys that the slices in ``folder`` remember as removed for good."""
    table = parquet_tables.read_table(folder / DEPARTED_FILE)
    return list(table.filter(table["removed"])["key"].to_pylist())


def departed_rows(
    folder: Place, manifest: Mapping[str, Any], known: KnownKeys, dealt: npt.NDArray[np.bool_]
) -> pa.Table:
    """Rows (key, split) of ``known`` whose number is not among the ``dealt`` (bool by number)."""
    gone = []
    for table in _known_rows(folder, manifest):
        numbers = known.find(table["key"].to_pylist())
        gone.append(table.filter(~dealt[numbers]))
    return pa.concat_tables(gone)


def _known_rows(folder: Place, manifest: Mapping[str, Any]) -> Iterator[pa.Table]:
    yield from parquet_tables.iterate_groups(folder / EXAMPLES_FILE, ["key", "split"])
    yield parquet_tables.read_table(folder / DEPARTED_FILE, ["key", "split"])


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
    wrong = {"NotFound": "there is no such file", "Directory": "it is a folder"}.get(place.info().type.name, "")
    text = ""
    try:
        text = "" if wrong else place.read_bytes().decode()
    except UnicodeDecodeError:
        wrong = "it is no text"
    if wrong:
        raise UsageError(f"--remove {place}: {wrong}; give a text file of keys, one on each line")
    return sorted({line.rstrip("\r") for line in text.split("\n") if line.strip()})
