"""Where below a root certain images are: packs, parts and slices that have a row of one of their contents.

Every list that lies below the root is looked into, also those of earlier generations and those that no marker names.
In memory: one table, and the keys and contents that were found.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from etl.formats import parquet_tables
from etl.normalized.erased import Row, read_record
from etl.normalized.parts import pack_of
from etl.raw.packs import Removed, list_place
from etl.slices.lineage import finished_slices
from etl.slices.manifest import table_file
from etl.stages.layout import normalized_stage, raw_stage
from etl.storage.place import Place

PACKS, PARTS, SLICES = "packs", "parts", "slices"

ENDING = ".parquet"


@dataclass(frozen=True)
class Found:
    """What there is below a root of the images with these ``keys``, and of all with the same contents.

    ``rows`` are keys and contents, with those that were erased before. ``packs`` and ``parts`` are names, also of
    earlier generations; ``examples`` those of each set of slices that has any, by split. ``images`` is how many rows of
    raw are live.
    """

    keys: tuple[str, ...]
    rows: frozenset[Row]
    packs: frozenset[str]
    parts: frozenset[str]
    examples: dict[str, dict[str, int]]
    images: int

    @property
    def contents(self) -> frozenset[bytes]:
        return frozenset(sha256 for _, sha256 in self.rows)

    @property
    def unknown(self) -> list[str]:
        """Those keys that nothing has, or had when it was erased."""
        known = {key for key, _ in self.rows}
        return [key for key in self.keys if key not in known]

    @property
    def copies(self) -> list[str]:
        """Other keys with the same contents."""
        return sorted({key for key, _ in self.rows}.difference(self.keys))

    @property
    def is_anywhere(self) -> bool:
        return bool(self.packs or self.parts or self.examples)


def find_images(root: Place, keys: Sequence[str]) -> Found:
    """Look for the images with these keys, and for all with the same contents.

    Raises DataError if a list is damaged.
    """
    asked = pa.array(keys, pa.string())
    contents = set[bytes]()
    for _, _, table in _tables(root):
        contents.update(table["sha256"].filter(pc.is_in(table["key"], value_set=asked)).to_pylist())
    wanted = pa.array(sorted(contents), pa.binary(32))
    rows, holders = set[Row](), defaultdict[str, set[str]](set)
    examples = defaultdict[str, Counter[str]](Counter)
    for kind, name, table in _tables(root):
        of_them = table.filter(pc.is_in(table["sha256"], value_set=wanted))
        if of_them.num_rows:
            rows.update(zip(of_them["key"].to_pylist(), of_them["sha256"].to_pylist(), strict=True))
            holders[kind].add(name)
            examples[name].update(of_them["split"].to_pylist() if kind == SLICES else ())
    sets = {name: dict(sorted(examples[name].items())) for name in sorted(holders[SLICES])}
    packs = frozenset(holders[PACKS])
    live = _count_live(root, packs, wanted)
    return Found(tuple(keys), frozenset(rows), packs, frozenset(holders[PARTS]), sets, live)


def _tables(root: Place) -> Iterator[tuple[str, str, pa.Table]]:
    """Tables with the columns key and sha256: of what kind, and the name of the pack, part or slices.

    The first one, of no kind, is that of the images that were erased before.
    """
    yield "", "", read_record(root)
    folders = (("raw/packs", PACKS), ("normalized/parts", PARTS), ("normalized/rejects", PARTS))
    for below, kind in folders:
        for info in (root / below).children():
            if info.base_name.endswith(ENDING):
                table = parquet_tables.read_table(root / below / info.base_name, ["key", "sha256"])
                yield kind, info.base_name.removesuffix(ENDING), table
    for stage in finished_slices(root):
        for table in parquet_tables.iterate_groups(stage.folder / table_file("examples"), ["key", "sha256", "split"]):
            yield SLICES, stage.folder.name, table


def _count_live(root: Place, packs: frozenset[str], contents: pa.Array) -> int:
    """How many live rows of these packs have one of these contents."""
    stage = raw_stage(root)
    if not packs or not stage.marker.exists():
        return 0
    raw, live = stage.read_generation(), 0
    removed = Removed.read(root, raw.marker)
    for pack in raw.entries:
        if pack["name"] in packs:
            table = parquet_tables.read_table(list_place(root / "raw", pack["name"]), ["key", "sha256"])
            there = removed.filter(pack["name"], table)["sha256"]
            live += int(pc.is_in(there, value_set=contents).to_numpy().sum())
    return live


def has_parts(root: Place, found: Found) -> bool:
    """Whether the current ``normalized`` has parts with these images."""
    stage = normalized_stage(root)
    if not stage.marker.exists():
        return False
    parts = stage.read_generation().entries
    return any(part["part"] in found.parts or pack_of(part) in found.packs for part in parts)
