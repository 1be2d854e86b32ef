"""A source against what is packed already: which images are the same, which are gone or have changed.

The source's list is held in memory, the packs' lists pass by one after the other. A file is read only where its time of
change is another than when it was packed or last compared.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from etl.errors import UsageError
from etl.formats import parquet_tables
from etl.progress import Progress, log
from etl.raw.mtimes import Versions
from etl.raw.packs import content_sha256, list_place
from etl.raw.removed import Removed
from etl.sources import Source
from etl.stages.stage import require
from etl.storage.place import Place, open_place

NO_IMAGE = -1

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class KeptPack:
    """A pack that stays as it is; ``removed`` are the rows of it that hold no image any more: int64, ascending."""

    name: str
    removed: Integers


@dataclass(frozen=True)
class RenewalPlan:
    """The packs that stay, in their order, and the images that none of them holds: int64, ascending."""

    kept: tuple[KeptPack, ...]
    unpacked: Integers


def plan_renewal(packs: Iterable[tuple[str, Integers]], images: int) -> RenewalPlan:
    """What becomes of ``packs``, each a name and the image of each row (`NO_IMAGE` for none): int64 of shape (rows,).

    A pack with more than half of its rows removed is not kept: what it still holds is packed anew. Of two rows with the
    same image the second one is removed.
    """
    packed = np.zeros(images, dtype=np.bool_)
    kept = []
    for name, held in packs:
        live = _first_of_each(held) & ~packed[held]  # NO_IMAGE reads the last image's, and is live nowhere
        removed = np.flatnonzero(~live)
        if 2 * len(removed) > len(held) or len(removed) == len(held):
            continue
        packed[held[live]] = True
        kept.append(KeptPack(name, removed))
    return RenewalPlan(tuple(kept), np.flatnonzero(~packed))


def _first_of_each(held: Integers) -> npt.NDArray[np.bool_]:
    first = np.zeros(len(held), dtype=np.bool_)
    first[np.unique(held, return_index=True)[1]] = True
    return first & (held != NO_IMAGE)


_COLUMNS = ["key", "label", "split", "size", "sha256", "columns"]


@dataclass
class Comparison:
    """``plan`` says what becomes of the packs; the rest counts the images that were packed, by what is the case now."""

    plan: RenewalPlan
    known: int = 0
    missing: int = 0
    changed: int = 0
    read: int = 0
    removed_keys: dict[str, pa.Array] = field(default_factory=dict)

    @classmethod
    def with_nothing(cls, images: int) -> "Comparison":
        """Where nothing is packed yet."""
        return cls(plan_renewal([], images))

    @property
    def is_the_same(self) -> bool:
        return not (self.missing or self.changed or len(self.plan.unpacked))

    def removed_rows(self) -> Iterator[tuple[str, str]]:
        """Pack and key of every removed row of the packs that are kept, in their order."""
        for pack in self.plan.kept:
            for key in self.removed_keys.get(pack.name, pa.array([], pa.string())).take(pa.array(pack.removed)):
                yield pack.name, key.as_py()

    def require_most_known(self, max_removed: float, place: Place) -> None:
        """Raise UsageError where so many images are gone or changed that it may be another source."""
        if self.missing + self.changed > max_removed * self.known:
            raise UsageError(
                f"of {self.known} images in {place} {self.missing} are missing in this source and {self.changed} have"
                f" changed, more than --max-removed {max_removed:g}; is this another source? Give --max-removed 1 if it"
                " is not, or --overwrite to replace them all"
            )


def compare(source: Source, root: Place, marker: dict[str, Any], versions: Versions) -> Comparison:
    """Hold ``source`` against the packs of ``marker``, that of raw. Raises DataError where a list is damaged."""
    comparer = _Comparer(source, root, marker, versions)
    images = sum(pack["images"] for pack in marker["packs"])
    with Progress("ingest", images, "images compared", begins=False) as progress:
        comparer.result.plan = plan_renewal(comparer.packs(progress), len(source.images))
    return comparer.result


class _Comparer:
    def __init__(self, source: Source, root: Place, marker: dict[str, Any], versions: Versions) -> None:
        self._source, self._raw, self._marker, self._versions = source, root / "raw", marker, versions
        self._removed = Removed.read(root, marker)
        self._hashes: dict[str, str] = {}
        self._keys = pa.array([image.key for image in source.images], pa.string())
        self.result = Comparison.with_nothing(0)

    def packs(self, progress: Progress) -> Iterator[tuple[str, Integers]]:
        """Each pack with the number of the image that each of its rows still holds."""
        done = 0
        for pack in self._marker["packs"]:
            listed = list_place(self._raw, pack["name"])
            rows = parquet_tables.read_table(listed, _COLUMNS)
            require(rows.num_rows == pack["images"], f"{listed} has {rows.num_rows} rows, not {pack['images']}")
            live = self._removed.live(pack["name"], rows["key"])
            held = np.full(rows.num_rows, NO_IMAGE, dtype=np.int64)
            found = pc.index_in(rows["key"], value_set=self._keys).fill_null(NO_IMAGE).to_numpy()
            unsure = []
            for number, row in enumerate(rows.to_pylist()):
                if live[number]:
                    held[number] = self._look(row, found[number])
                    if held[number] != NO_IMAGE and not self._is_known(pack["name"], held[number]):
                        unsure.append((held[number], number, row["sha256"]))
            if (file := pack.get("file")) is None:
                self._read(unsure, held)
            elif unsure or not self._lies_there(file, held):
                self._judge_file(pack, held)
            done += rows.num_rows
            progress.update(done)
            self.result.removed_keys[pack["name"]] = rows["key"].combine_chunks()
            yield pack["name"], held

    def _look(self, row: dict[str, Any], number: int) -> int:
        """The number of the image that a live row holds as far as the source's list tells, or `NO_IMAGE`; counted."""
        self.result.known += 1
        if number == NO_IMAGE:
            self.result.missing += 1
            return NO_IMAGE
        image = self._source.images[number]
        columns = tuple(row["columns"]) if row["columns"] is not None else None
        ours = (image.label, image.split, image.size_bytes, image.columns)
        if ours == (row["label"], row["split"], row["size"], columns):
            return number
        self.result.changed += 1
        return NO_IMAGE

    def _is_known(self, pack: str, number: int) -> bool:
        return bool(self._versions.same[number]) and pack in self._versions.packs

    @cached_property
    def _files(self) -> list[str]:
        return [file.place.uri for file in self._source.large_files()]

    def _sha256_of(self, file: str) -> str:
        """Of a source's own file, read once: several packs may share it."""
        if file not in self._hashes:
            self._hashes[file] = open_place(file).sha256()
        return self._hashes[file]

    def _lies_there(self, file: str, held: Integers) -> bool:
        """Whether the images that a pack in place holds are in that file still."""
        files = {self._source.images[number].position[0] for number in held.tolist() if number != NO_IMAGE}
        return {self._files[number] for number in files} <= {file}

    def _judge_file(self, pack: dict[str, Any], held: Integers) -> None:
        """A file that is a pack must be the same as a whole, for places in it count."""
        self._tell_of_reading(pack["images"])
        if not (self._lies_there(pack["file"], held) and self._sha256_of(pack["file"]) == pack["sha256"]):
            self.result.changed += int((held != NO_IMAGE).sum())
            held[:] = NO_IMAGE

    def _tell_of_reading(self, images: int) -> None:
        if images and not self.result.read:
            log("ingest", "files were written again since they were packed; comparing their contents with the packs")
        self.result.read += images

    def _read(self, unsure: list[tuple[int, int, bytes]], held: Integers) -> None:
        """Read those of which only the content can tell, (number, row, SHA-256): no image in ``held`` if another."""
        self._tell_of_reading(len(unsure))
        unsure = sorted(unsure)
        contents = self._source.read_all([self._source.images[number] for number, *_ in unsure])
        for (_, row, sha256), content in zip(unsure, contents, strict=True):
            if content_sha256(content) != sha256:
                self.result.changed += 1
                held[row] = NO_IMAGE
