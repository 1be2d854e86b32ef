"""What slices record of splits: that of each key, content and group that they, or slices before them, ever had.

A content is the SHA-256 of a source image. Keys and contents of the examples are in the table of examples; those that
are not among them any more in ``departed.parquet`` and ``contents.parquet``; groups in ``groups.parquet``. Keys to
remove for good come in a text file (``--remove``).

Slices that were made with ``--splits-from`` are on a lineage: their manifest has their number on it, from 1, and the
SHA-256 of each manifest before it, so that the lineage is known though older slices are pruned. Slices that were made
without are on none, unless others were made from them.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow.fs import FileType

from etl.errors import DataError, EnvironmentFailure, UsageError
from etl.formats import parquet_tables, schemas
from etl.partition.config import SPLIT_NAMES
from etl.partition.shares import Integers
from etl.slices.manifest import read_slices, table_file
from etl.sources.fields import read_lines
from etl.stages.layout import is_folder_name, slices_below, slices_stage, slices_stage_in
from etl.stages.marker import Generation
from etl.stages.stage import Stage
from etl.storage.place import Place, open_place
from etl.values import name_some

Bools = npt.NDArray[np.bool_]
Bits = npt.NDArray[np.uint8]  # sets of splits: bit n for SPLIT_NAMES[n]

RETIRED_TABLES = ("departed", "contents", "groups")
TABLES_OF_HISTORY = {  # and the columns of each that are read
    "examples": ["key", "split", "sha256"],
    "departed": ["key", "split", "removed"],
    "contents": ["sha256", "split"],
    "groups": ["group", "split"],
}
NEWEST = "newest"

FIRST: dict[str, Any] = {"number": 1, "ancestors": []}


def find(values: pa.ChunkedArray, known: pa.ChunkedArray) -> Integers:
    """The place of each value among those that are ``known``, -1 for any other: int64 of shape (values,)."""
    import pyarrow.compute as pc  # a quarter of what a task takes to start, which needs none of it

    return pc.index_in(values, value_set=known).fill_null(-1).to_numpy().astype(np.int64)


def split_numbers(column: pa.ChunkedArray) -> npt.NDArray[np.int8]:
    """The number of each split name in SPLIT_NAMES, -1 for none: int8 of shape (rows,)."""
    return find(column, pa.chunked_array([pa.array(SPLIT_NAMES)])).astype(np.int8)


@dataclass(frozen=True)
class SplitHistory:
    """All that finished slices record.

    ``keys`` (string, each once) have ``key_splits``: int8, a number in SPLIT_NAMES, -1 for a key that was removed
    before it had any. ``contents`` (binary(32), each once) have ``content_splits``: one, unless the source put copies
    of an image into several. ``groups`` has the number of each group's split, ``removed`` the keys that were removed
    for good.
    """

    keys: pa.ChunkedArray
    key_splits: npt.NDArray[np.int8]
    contents: pa.ChunkedArray
    content_splits: Bits
    groups: Mapping[str, int]
    removed: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls, keys: pa.Table, contents: pa.Table, groups: Mapping[str, int], removed: frozenset[str] = frozenset()
    ) -> "SplitHistory":
        """From tables with the columns key and split (each key once), and sha256 and split."""
        encoded = contents["sha256"].combine_chunks().dictionary_encode()
        bits = np.zeros(len(encoded.dictionary), dtype=np.uint8)
        splits = np.left_shift(1, split_numbers(contents["split"])).astype(np.uint8)
        np.bitwise_or.at(bits, encoded.indices.to_numpy(), splits)
        known = pa.chunked_array([encoded.dictionary])
        return cls(keys["key"], split_numbers(keys["split"]), known, bits, groups, removed)

    @classmethod
    def empty(cls) -> "SplitHistory":
        """That of slices without any before them."""
        return cls.of(schemas.DEPARTED.empty_table(), schemas.CONTENTS.empty_table(), {})

    @classmethod
    def read(cls, folder: Place, manifest: Mapping[str, Any]) -> "SplitHistory":
        """That of the slices in ``folder``. Raises DataError if a table is not the one that the manifest names."""
        for name in TABLES_OF_HISTORY:
            _require_as_written(folder, manifest["tables"][name])
        examples, departed, contents, groups = (
            parquet_tables.read_table(folder / table_file(name), columns) for name, columns in TABLES_OF_HISTORY.items()
        )
        return cls.of(
            pa.concat_tables([table.select(["key", "split"]) for table in (examples, departed)]),
            pa.concat_tables([table.select(["sha256", "split"]) for table in (examples, contents)]),
            splits_of_groups(groups),
            frozenset(removed_of(departed)),
        )

    def retired_tables(
        self,
        places: Integers,
        contents: Integers,
        splits: npt.NDArray[np.int8],
        *,
        removed: frozenset[str],
        groups: Mapping[str, int],
    ) -> dict[str, pa.Table]:
        """The tables ``departed``, ``contents`` and ``groups`` of slices that have these splits of all ``groups``.

        ``places`` and ``contents`` are the places of all examples' keys and contents here, -1 for what is new;
        ``splits`` their numbers. Departed are the keys that are not examples any more, and those of ``removed`` that
        never were there.
        """
        import pyarrow.compute as pc

        seen_keys = np.zeros(len(self.keys), dtype=bool)
        seen_keys[places[places >= 0]] = True
        seen_contents, known = np.zeros(len(self.contents), dtype=np.uint8), contents >= 0
        np.bitwise_or.at(seen_contents, contents[known], np.left_shift(1, splits[known]).astype(np.uint8))
        listed = pa.chunked_array([sorted(removed)], pa.string())
        unknown = listed.filter(pa.array(find(listed, self.keys) < 0))
        splits = pa.array(self.key_splits[~seen_keys], mask=self.key_splits[~seen_keys] < 0)
        names = pa.chunked_array([pa.array(SPLIT_NAMES).take(splits), pa.nulls(len(unknown), pa.string())])
        keys = pa.chunked_array([*self.keys.filter(pa.array(~seen_keys)).chunks, *unknown.chunks], pa.string())
        departed = {"key": keys, "split": names, "removed": pc.is_in(keys, value_set=listed.combine_chunks())}
        in_order = sorted(groups.items())
        of_groups = [SPLIT_NAMES[number] for _, number in in_order]
        return {
            "departed": pa.table(departed, schemas.DEPARTED).combine_chunks(),
            "contents": self._retired_contents(seen_contents),
            "groups": pa.table({"group": [name for name, _ in in_order], "split": of_groups}, schemas.GROUPS),
        }

    def _retired_contents(self, seen: Bits) -> pa.Table:
        """`schemas.CONTENTS` of the contents in those of their splits in which they are not ``seen``."""
        left = self.content_splits & ~seen
        tables = []
        for number, name in enumerate(SPLIT_NAMES):
            contents = self.contents.filter(pa.array(left >> number & 1 == 1))
            tables.append(pa.table({"sha256": contents, "split": pa.repeat(name, len(contents))}))
        rows = pa.concat_tables(tables).sort_by([("sha256", "ascending"), ("split", "ascending")])
        return rows.cast(schemas.CONTENTS)


def _require_as_written(folder: Place, recorded: Mapping[str, Any]) -> None:
    place = folder / recorded["file"]
    remedy = f"run: ringslice verify {folder.parent.parent} --name {folder.name} --repair"
    if place.name != table_file("examples"):
        remedy = "put the original back"
    try:
        if place.sha256() != recorded["sha256"]:
            raise DataError(
                f"{place} has another SHA-256 than its manifest records, and splits cannot be kept by it; {remedy}"
            )
    except FileNotFoundError:
        raise DataError(f"{place} is missing, and splits cannot be kept without it; {remedy}") from None


def removed_keys(folder: Place) -> list[str]:
    """Keys that the slices in ``folder`` record as removed for good."""
    return removed_of(parquet_tables.read_table(folder / table_file("departed"), ["key", "removed"]))


def removed_of(departed: pa.Table) -> list[str]:
    """The keys of a table ``departed`` that were removed for good."""
    return list(departed.filter(departed["removed"])["key"].to_pylist())


def splits_of_groups(groups: pa.Table) -> dict[str, int]:
    """The number of each group's split, from a table ``groups``."""
    return dict(zip(groups["group"].to_pylist(), split_numbers(groups["split"]).tolist(), strict=True))


def read_keys(place: Place, option: str = "--remove") -> list[str]:
    """The keys in a text file of one on each line, sorted, each once. Raises UsageError if it is not such a file."""
    return sorted({line for line in read_lines(place, option, "a key") if line})


def describe_unknown(unknown: Sequence[str], listed: Sequence[str]) -> str:
    """How many of the keys that are ``listed`` are ``unknown``, with some of them."""
    return f"{len(unknown)} of {len(listed)} keys are unknown: {name_some(list(map(repr, unknown)))}"


def list_sha256(keys: Iterable[str]) -> str:
    """The SHA-256, in hexadecimal, of a sorted list of keys: as manifests record it."""
    return hashlib.sha256("\n".join(keys).encode()).hexdigest()


class ParentSlices(Generation):
    """Finished slices: their manifest, its fingerprint, and their folder."""

    @classmethod
    def read(cls, stage: Stage) -> "ParentSlices":
        """The slices of this stage. Raises as `read_slices` does."""
        slices = read_slices(stage)
        return cls(slices.marker, slices.fingerprint, slices.folder)

    @cached_property
    def history(self) -> SplitHistory:
        """All that they record of splits. Raises DataError if a table of theirs is not as it was written."""
        return SplitHistory.read(self.folder, self.marker)

    @property
    def stage(self) -> Stage:
        """That of their folder."""
        return slices_stage_in(self.folder)

    @property
    def lineage(self) -> dict[str, Any]:
        """Their number, and the fingerprints of the slices that they descend from, the parent first."""
        return self.marker["lineage"] or FIRST

    @property
    def next_lineage(self) -> dict[str, Any]:
        """The lineage of slices that are made from these."""
        return {"number": self.lineage["number"] + 1, "ancestors": [self.fingerprint, *self.lineage["ancestors"]]}


def lineage_of(asked: str | None, parent: ParentSlices | None) -> dict[str, Any] | None:
    """The manifest's facts about the lineage of slices for which --splits-from was ``asked``, and gave ``parent``."""
    if asked is None:
        return None
    return parent.next_lineage if parent else FIRST


def find_parent(root: Place, asked: str | None, own: Stage, overwrite: bool = False) -> ParentSlices | None:
    """The slices that ``asked`` names: a manifest, a folder of slices, a name below ``root``, or 'newest'.

    'newest' is the end of the root's lineage, ``own`` left aside; without a lineage the only finished slices; None
    if there are none. For ``own`` that is finished, and is not to be overwritten, it is what they were made from.

    Raises UsageError if there are none, or several ends, or ``own`` would be lost; DataError if their manifest is
    damaged.
    """
    if asked is None:
        return None
    if asked == NEWEST:
        return _newest(root, own, overwrite)
    found = ParentSlices.read(_named(root, asked))
    if found.folder.resolved() == own.folder.resolved():
        raise UsageError(f"--splits-from {asked}: these are the slices to be made; give them another --name")
    return found


def require_parent(root: Place, asked: str | None, own: Stage, parent: ParentSlices | None) -> None:
    """Raise EnvironmentFailure if 'newest' is another ``parent`` now: a lineage with two ends would be left."""
    if asked != NEWEST:
        return
    now = _newest(root, own, overwrite=True)
    if (now and now.fingerprint) != (parent and parent.fingerprint):
        raise EnvironmentFailure(
            f"--splits-from {NEWEST}: {now.folder if now else 'what it named'} was made or removed meanwhile, so the"
            f" splits of {own.folder} would be of another lineage; run it again with --overwrite"
        )


def _named(root: Place, text: str) -> Stage:
    if is_folder_name(text) and slices_stage(root, text).folder.exists():
        return slices_stage(root, text)
    place = open_place(text)
    stage = slices_stage_in(place if place.info().type == FileType.Directory else place.parent)
    if not stage.marker.exists() or place.path not in (stage.folder.path, stage.marker.path):
        raise UsageError(
            f"--splits-from {text}: no slices there; give a manifest.json, its folder,"
            f" the name of slices of {root}, or '{NEWEST}'"
        )
    return stage


def _newest(root: Place, own: Stage, overwrite: bool) -> ParentSlices | None:
    finished, is_there = read_finished(root, own.folder), own.marker.exists()
    there = ParentSlices.read(own) if is_there and not overwrite else None
    if there and there.marker["lineage"]:
        splits_from = there.marker["config"]["splits_from"]
        return next((each for each in finished if each.fingerprint == splits_from), None)
    found = _end_of_lineage(finished)
    if found is None and is_there and overwrite:
        raise UsageError(
            f"--splits-from {NEWEST} with --overwrite: only {own.folder.name} has splits to keep, and it would be"
            " replaced; give another --name, or leave --splits-from out to assign all splits again"
        )
    return found


def lineage_ends(finished: Sequence[ParentSlices]) -> list[ParentSlices]:
    """Of all finished slices of a root those that are on a lineage, and that no others were made from."""
    ancestors = {fingerprint for each in finished for fingerprint in each.lineage["ancestors"]}
    return [each for each in finished if each.marker["lineage"] and each.fingerprint not in ancestors]


def _end_of_lineage(finished: Sequence[ParentSlices]) -> ParentSlices | None:
    """The end of the lineage; without a lineage the only finished slices. Raises UsageError if there are several."""
    ends = lineage_ends(finished)
    if len(candidates := ends or finished) > 1:
        names = " and ".join(each.folder.name for each in candidates)
        what = "several ends of the lineage" if ends else "several sets of slices, none made from another"
        raise UsageError(
            f"--splits-from {NEWEST}: {what}, {names}; name the one whose splits are to be kept,"
            " and remove the others or give them another ROOT"
        )
    return candidates[0] if candidates else None


def finished_slices(root: Place) -> Iterator[Stage]:
    """The finished slices of a root."""
    return (each for each in slices_below(root) if is_folder_name(each.folder.name) and each.marker.exists())


def read_finished(root: Place, left_out: Place | None = None) -> list[ParentSlices]:
    """The finished slices of a root, without those in the folder ``left_out`` and those that are removed meanwhile.

    Raises what `read_slices` raises.
    """
    found = []
    for stage in (each for each in finished_slices(root) if each.folder != left_out):
        try:
            found.append(ParentSlices.read(stage))
        except (UsageError, FileNotFoundError):
            if stage.marker.exists():
                raise
    return found


def finished_at(stage: Stage) -> tuple[str, str]:
    """When slices were finished, to sort by: as run.json says, else when their manifest was written."""
    return ended_at(stage.read_run(), stage.marker.info().mtime, stage.folder)


def ended_at(record: Mapping[str, Any], changed: datetime | None, folder: Place) -> tuple[str, str]:
    """When a run ended, to sort by: as its ``record`` has it, else when files were ``changed``; and its ``folder``.

    First of all if there is neither: it was removed meanwhile.
    """
    finished = record.get("finished")
    if not isinstance(finished, str):
        finished = changed.astimezone(UTC).isoformat(timespec="milliseconds") if changed else ""
    return finished, folder.path
