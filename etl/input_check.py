"""Whether nothing was lost on the way: input = good + rejects, for each part and in all.

Every image of a pack's list is one row of its part or one of the part's rejects, with the same SHA-256, and these hold
no others. A part at a time: memory goes by the images of one pack.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from etl.formats import schemas
from etl.normalized.parts import pack_of
from etl.verification import INPUT, MANIFEST, Finding

COLUMNS = ["key", "sha256"]
DATASET = "dataset.json"

Part = Mapping[str, Any]


def input_faults(part: Part, images: pa.Table, good: pa.Table, rejects: pa.Table) -> Iterator[Finding]:
    """Whether the ``images`` of a part's pack are its ``good`` ones and its ``rejects``: tables of `COLUMNS`.

    There is one finding at most, which names one image.
    """
    listed, held = dict(_pairs([images])), dict(_pairs([good, rejects]))
    number, name = good.num_rows + rejects.num_rows, part["part"]
    fault = ""
    if lost := next((key for key in listed if key not in held), None):
        fault = f"{lost} is neither"
    elif unknown := next((key for key in held if key not in listed), None):
        fault = f"{unknown} is none of them"
    elif not number == len(held) == images.num_rows:
        fault = f"{_first_double([images]) or _first_double([good, rejects])} is there twice"
    elif other := next((key for key in listed if listed[key] != held[key]), None):
        fault = f"{other} has another SHA-256"
    if fault:
        said = f"{images.num_rows} images of {pack_of(part)} are not {good.num_rows} good + {rejects.num_rows} rejects"
        yield Finding(INPUT, name, f"{name}: the {said}: {fault}")


def _pairs(several: Iterable[pa.Table]) -> Iterator[tuple[str, bytes]]:
    for table in several:
        yield from zip(*(table[name].to_pylist() for name in COLUMNS), strict=True)


def _first_double(several: Iterable[pa.Table]) -> str | None:
    seen = set[str]()
    for key, _ in _pairs(several):
        if key in seen:
            return key
        seen.add(key)
    return None


def no_rejects() -> pa.Table:
    """What `input_faults` takes where a part has none."""
    return schemas.REJECTS.empty_table().select(COLUMNS)


def dataset_faults(dataset: Mapping[str, Any], counted: Mapping[str, int]) -> Iterator[Finding]:
    """Where the marker of the normalised images contradicts itself, or what was ``counted``: good images, rejects."""
    for part in dataset["parts"]:
        if part["input"] != part["records"] + part["rejects"]["count"]:
            said = f"{part['input']} images are not {part['records']} good + {part['rejects']['count']} rejects"
            yield _fault(f"{part['part']}: {said}")
    told = dataset["counts"]
    for name, what in (("good", "good images"), ("rejects", "rejects")):
        if told[name] != counted.get(name, 0):
            yield _fault(f"normalized tells of {told[name]} {what}, its parts have {counted.get(name, 0)}")
    if told["input"] != told["good"] + told["rejects"]:
        yield _fault(f"{told['input']} images are not {told['good']} good + {told['rejects']} rejects")


def pack_faults(dataset: Mapping[str, Any], raw: Mapping[str, Any] | None) -> Iterator[Finding]:
    """Where the parts are not those of the packs that they were made of: ``raw`` is that marker, None if it is gone."""
    if raw is None:
        yield _fault("normalized was made from packs that raw neither has nor had")
        return
    parts = {pack_of(part): part for part in dataset["parts"]}
    if len(parts) != len(dataset["parts"]):
        yield _fault("normalized has two parts of one pack")
    for pack in raw["packs"]:
        part = parts.pop(pack["name"], None)
        if part is None:
            yield _fault(f"{pack['name']} of raw has no part")
        elif _made_of(part) != (pack["sha256"], pack["list_sha256"], pack["images"], pack["removed"]):
            yield _fault(
                f"{part['part']}: {part['input']} images, {part['removed']} of them removed, are not the"
                f" {pack['images']} of {pack['name']}, {pack['removed']} removed, or it is another pack"
            )
    yield from (_fault(f"{part['part']} was made of a pack that raw does not name") for part in parts.values())
    live = sum(pack["images"] - pack["removed"] for pack in raw["packs"])
    if live != dataset["counts"]["input"]:
        yield _fault(f"normalized tells of {dataset['counts']['input']} images, raw has {live}")


def _made_of(part: Part) -> tuple[str, str, int, int]:
    return part["pack_sha256"], part["list_sha256"], part["input"], part["removed"]


def _fault(line: str) -> Finding:
    return Finding(MANIFEST, DATASET, line)
