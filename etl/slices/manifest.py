"""Read the manifest of a set of slices: check its checksum, and give readers the slices and the image format."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from etl.errors import DataError, UsageError
from etl.formats import schemas
from etl.stages.stage import Stage
from etl.storage.json_files import with_checksum

TABLES = {
    "examples": schemas.EXAMPLES,
    "blocks": schemas.BLOCKS,
    "class_counts": schemas.CLASS_COUNTS,
    "departed": schemas.DEPARTED,
    "contents": schemas.CONTENTS,
    "groups": schemas.GROUPS,
}


def table_file(name: str) -> str:
    """The file of the table with this name in `TABLES`, below the manifest."""
    return f"{name}.parquet"


def read_manifest(stage: Stage) -> dict[str, Any]:
    """The manifest of finished slices.

    Raises UsageError if there is none of this version, DataError if it is not as it was written.
    """
    manifest = stage.read_marker()
    if manifest != with_checksum(manifest):
        raise DataError(
            f"{stage.marker} was edited or damaged: its checksum is not that of its content;"
            " put the original back, or run shard again with --overwrite"
        )
    return manifest


def slices_of(manifest: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The split and the entry of every slice, numbered through as the tables have them."""
    for split, facts in manifest["splits"].items():
        for each in facts["slices"]:
            yield split, each


def located_slices(manifest: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any], int, int]]:
    """The split and the entry of every slice, and the rows of the tables of examples and blocks where its own begin."""
    examples = blocks = 0
    for split, each in slices_of(manifest):
        yield split, each, examples, blocks
        examples += each["records"]
        blocks += each["blocks"]


@dataclass(frozen=True)
class Slice:
    """One slice as the manifest names it; ``name`` is its path below the manifest without an ending.

    ``first_example`` and ``first_block`` are the rows of the tables of examples and of blocks at which its own begin;
    ``group`` is the group of workers that it was cut for, None if there is one for all.
    """

    name: str
    records: int
    blocks: int
    size_bytes: int
    sha256: str
    first_example: int
    first_block: int
    group: int | None = None


@dataclass(frozen=True)
class Manifest:
    """What a reader needs of the manifest: ``mean`` and ``std`` are by channel, on the scale 0 to 255.

    ``height`` and ``width`` are None if images differ in size. Pixels that are kept as floats are
    (pixel - ``subtract``) / ``divide_by``, by channel.
    """

    classes: tuple[str, ...]
    height: int | None
    width: int | None
    channels: int
    format: str
    splits: dict[str, tuple[Slice, ...]]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    subtract: tuple[float, ...] = ()
    divide_by: tuple[float, ...] = ()

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of every image. Raises UsageError if they differ."""
        if self.height is None or self.width is None:
            raise UsageError(
                "the images of these slices differ in size, and a batch takes one; normalize again with --fit crop,"
                " exact or pad (and without --only-shrink, unless it is pad)"
            )
        return self.height, self.width

    @classmethod
    def from_json(cls, marker: Mapping[str, Any]) -> Self:
        """Raises DataError if something is missing."""
        try:
            image, statistics = marker["image"], marker["statistics"]
            facts: dict[str, Any] = {name: image[name] for name in ("height", "width", "channels", "format")}
            facts |= {name: tuple(statistics[name]) for name in ("mean", "std")}
            facts |= {name: tuple(image[name]) for name in ("subtract", "divide_by") if name in image}
            return cls(classes=tuple(marker["classes"]), splits=_slices_by_split(marker), **facts)
        except KeyError as error:
            raise DataError(f"the manifest lacks {error}; it was damaged or written by something else") from None

    def of_group(self, group: int) -> Self:
        """The same, but the training split has the slices of one group of workers only.

        Raises UsageError if there is no such group.
        """
        groups = sorted({each.group for each in self.splits.get("train", ()) if each.group is not None})
        if group not in groups:
            known = f"these slices have the groups 0 to {groups[-1]}" if groups else "these slices have no groups"
            raise UsageError(f"--group {group}: {known}; cut some with: ringslice shard --groups N")
        own = tuple(each for each in self.splits["train"] if each.group == group)
        return replace(self, splits={**self.splits, "train": own})


def _slices_by_split(marker: Mapping[str, Any]) -> dict[str, tuple[Slice, ...]]:
    found: dict[str, list[Slice]] = {split: [] for split in marker["splits"]}
    for split, each, first_example, first_block in located_slices(marker):
        facts = (each["name"], each["records"], each["blocks"], each["bytes"], each["sha256"])
        found[split].append(Slice(*facts, first_example, first_block, each.get("group")))
    return {split: tuple(slices) for split, slices in found.items()}
