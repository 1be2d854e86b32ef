"""One part against its pack's list: every image is good or a reject, as it was listed; and all that is told of it.

What a table tells of itself (the facts in its metadata) must be what its rows say, and what the markers say of it: the
driver compares those by their digest.
"""

import tarfile
from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from etl.errors import RingsliceError
from etl.formats import parquet_tables
from etl.formats.example import ExampleFacts, parse_facts
from etl.formats.records import read_records
from etl.images.result import LONGEST_DETAIL, Reason
from etl.normalized.parts import pack_of, part_facts, read_images
from etl.partition.config import SPLIT_NAMES
from etl.storage.json_files import checksum_of
from etl.storage.place import READ_BUFFER_BYTES, Place
from etl.verify.findings import INPUT, LISTED, Finding

COLUMNS = ["key", "sha256", "label", "split", "columns"]  # what a row and a reject have from the pack's list
RECORD_COLUMNS = (*ExampleFacts._fields, "offset", "size", "crc32c")
DEFAULTS = {"split", "columns"}  # columns that may be null
NOT_OF_THE_LIST = frozenset({"list_sha256", "removed"})  # what raw's marker says of a pack besides the list's own facts
NOT_OF_THE_ROWS = frozenset({"rows_sha256", "removed", "live", "limits"})  # and normalized's of a part

Part = Mapping[str, Any]


def table_fault(table: pa.Table, schema: pa.Schema) -> str | None:
    """Why a table is none of this schema, if so: another column or type, or nothing where a value is needed."""
    if not table.schema.remove_metadata().equals(schema):
        return "has other columns than such a table has"
    empty = [name for name in schema.names if name not in DEFAULTS and table[name].null_count]
    return f"has rows without {empty[0]}" if empty else None


def input_faults(part: Part, images: pa.Table, good: pa.Table, rejects: pa.Table) -> Iterator[Finding]:
    """Whether the ``images`` of a part's pack are its ``good`` ones and its ``rejects``: tables with `COLUMNS`.

    There is one finding at most, which names one image.
    """
    held = pa.concat_tables([good.select(COLUMNS), rejects.select(COLUMNS)])
    listed, there = images["key"].combine_chunks(), held["key"].combine_chunks()
    rows = pc.index_in(there, value_set=listed)
    fault = ""
    if lost := _first(listed, pc.invert(pc.is_in(listed, value_set=there))):
        fault = f"{lost} is neither"
    elif unknown := _first(there, pc.is_null(rows)):
        fault = f"{unknown} is none of them"
    elif not held.num_rows == pc.count_distinct(there).as_py() == images.num_rows:
        fault = f"{_first_double(listed) or _first_double(there)} is there twice"
    else:
        fault = _difference(images.select(COLUMNS).take(rows), held)
    if fault:
        said = f"{images.num_rows} images of {pack_of(part)} are not {good.num_rows} good + {rejects.num_rows} rejects"
        yield _input_fault(part, f"the {said}: {fault}")


def _first(keys: pa.Array, wanted: pa.Array) -> str | None:
    found = keys.filter(wanted)
    return str(found[0]) if len(found) else None


def _first_double(keys: pa.Array) -> str | None:
    counted = keys.value_counts()
    return _first(counted.field("values"), pc.greater(counted.field("counts"), 1))


def _difference(images: pa.Table, held: pa.Table) -> str:
    """What the first image is that is not as the list has it; empty where all are."""
    for name in COLUMNS[1:]:
        if not images[name].combine_chunks().equals(held[name].combine_chunks()):
            pairs = enumerate(zip(images[name].to_pylist(), held[name].to_pylist(), strict=True))
            at = next(row for row, (listed, told) in pairs if listed != told)
            return f"{held['key'][at]} has another {'SHA-256' if name == 'sha256' else name}"
    return ""


def _input_fault(part: Part, line: str) -> Finding:
    return Finding(INPUT, part["part"], f"{part['part']}: {line}")


def list_faults(part: Part, images: pa.Table, facts: Mapping[str, Any]) -> Iterator[Finding]:
    """Where the list of a pack contradicts itself, or cannot be that of a tar file as ``ingest`` writes it."""
    pack = pack_of(part)
    if not isinstance(facts, dict):
        yield Finding(LISTED, pack, f"the list of {pack} tells nothing of its pack")
    elif (
        set(images["pack"].to_pylist()) - {pack} or facts.get("name") != pack or facts.get("images") != images.num_rows
    ):
        yield Finding(LISTED, pack, f"the list of {pack} tells of another pack, or of {facts.get('images')} images")
    elif set(images["split"].to_pylist()) - {*SPLIT_NAMES, None}:
        yield Finding(LISTED, pack, f"the list of {pack} has a split that is none of {', '.join(SPLIT_NAMES)}")
    elif "file" not in facts and (fault := tar_fault(images, facts.get("bytes"))):
        yield Finding(LISTED, pack, f"the list of {pack}: {fault}")


def tar_fault(members: pa.Table, size_bytes: int | None) -> str | None:
    """Why members (columns key, offset, size) do not lie in a tar file of ours of this size (None: of any), if so."""
    keys = members["key"].to_pylist()
    offsets, sizes = (members[name].to_numpy().astype(np.int64) for name in ("offset", "size"))
    headers = np.array([_header_bytes(key, size) for key, size in zip(keys, sizes.tolist(), strict=True)], np.int64)
    padded = -(-sizes // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
    due = np.cumsum(headers + padded) - padded
    if (wrong := np.flatnonzero((offsets != due) | (sizes < 0))).size:
        return f"{keys[wrong[0]]} is not at offset {offsets[wrong[0]]}, of {sizes[wrong[0]]} bytes"
    end = int((headers + padded).sum()) + 2 * tarfile.BLOCKSIZE
    whole = -(-end // tarfile.RECORDSIZE) * tarfile.RECORDSIZE
    return f"its images make {whole} bytes, not {size_bytes}" if size_bytes not in (None, whole) else None


def _header_bytes(key: str, size: int) -> int:
    if key.isascii() and len(key) <= tarfile.LENGTH_NAME and size < 8 << 30:
        return tarfile.BLOCKSIZE
    header = tarfile.TarInfo(key)
    header.size = max(size, 0)
    return len(header.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict"))


def rejects_faults(part: Part, images: pa.Table, rejects: pa.Table) -> Iterator[Finding]:
    """Where the list of a part's rejects has another reason than there are, or cannot be that of its tar file."""
    reasons = {str(reason) for reason in Reason}
    sizes = images["size"].combine_chunks().take(pc.index_in(rejects["key"], value_set=images["key"].combine_chunks()))
    details = rejects["detail"].to_pylist()
    if unknown := sorted(set(rejects["reason"].to_pylist()) - reasons):
        yield _input_fault(part, f"its rejects have the reason {unknown[0]}, which is none")
    elif any(len(detail) > LONGEST_DETAIL or not detail.isprintable() for detail in details):
        yield _input_fault(part, f"a reject tells more than a printable line of {LONGEST_DETAIL} characters")
    elif sizes.to_pylist() != rejects["size"].to_pylist():
        yield _input_fault(part, "its rejects have not the sizes that the list of the pack tells")
    elif fault := tar_fault(rejects, None):
        yield _input_fault(part, f"its rejects: {fault}")


def rows_faults(
    part: Part, rows: pa.Table, rejects: pa.Table, facts: Mapping[str, Any], image: Mapping[str, Any]
) -> Iterator[Finding]:
    """Where the rows of a part contradict themselves or its ``facts``, or tell of images that it cannot have.

    ``image`` has what all images of these parts have: height and width (None where they differ) and channels.
    """
    if not _tells_counts(facts):
        yield _input_fault(part, "its rows do not tell of its images")
        return
    classes = max((len(counts) for counts in facts.get("examples", {}).values()), default=0)
    if not all(0 <= label < classes for label in rows["label"].to_pylist()):
        yield _input_fault(part, f"a row has a label that is none of {classes} classes")
        return
    due = part_facts(rows, rejects, classes) | {"part": part["part"], "input": rows.num_rows + rejects.num_rows}
    due["rejects"] |= {name: value for name, value in facts.get("rejects", {}).items() if "sha256" in name}
    sizes = rows["size"].to_numpy()
    if {name: facts.get(name) for name in due} != due:
        yield _input_fault(part, "what it tells of its images is not what its rows and its rejects say")
    elif not np.array_equal(rows["offset"].to_numpy(), np.cumsum(sizes) - sizes):
        yield _input_fault(part, "its rows do not tell of records one after the other")
    elif fault := _pixel_fault(rows, image):
        yield _input_fault(part, fault)


def _tells_counts(facts: Any) -> bool:
    """Whether these are facts of a part, as far as they are looked into: who forged them may have written anything."""
    if not isinstance(facts, dict):
        return False
    examples, rejects = facts.get("examples", {}), facts.get("rejects", {})
    if not (isinstance(examples, dict) and isinstance(rejects, dict)):
        return False
    return all(isinstance(counts, list | array) for counts in examples.values())


def _pixel_fault(rows: pa.Table, image: Mapping[str, Any]) -> str | None:
    """Why sizes or sums of pixels cannot be, if so; whether they are those of the images only decoding them tells."""
    sides = {name: rows[name].to_numpy().astype(np.int64) for name in ("height", "width")}
    for name, values in sides.items():
        if (values < 1).any() or (image[name] is not None and (values != image[name]).any()):
            return f"a row has another {name} than its images have"
    if (rows["source_width"].to_numpy() < 1).any() or (rows["source_height"].to_numpy() < 1).any():
        return "a row tells of a source image without pixels"
    pixels = sides["height"] * sides["width"]
    counted = [_by_channel(rows[name], image["channels"]) for name in ("sums", "squares")]
    if any(each is None for each in counted):
        return "a row has sums of another number of channels than its images have"
    sums, squares = (np.asarray(each, dtype=object) for each in counted)  # exact: a square of sums may be above 2^63
    wrong = (sums < 0) | (sums > 255 * pixels[:, None]) | (squares > 255 * sums)
    wrong |= (sums * sums > squares * pixels[:, None].astype(object)) | ((sums - squares) % 2 == 1)
    if wrong.any():
        at = int(np.flatnonzero(wrong.any(axis=1))[0])
        return f"{rows['key'][at]} has sums of pixels that no image has"
    return None


def _by_channel(column: pa.ChunkedArray, channels: int) -> npt.NDArray[np.int64] | None:
    """Of shape (rows, channels); None where a row has not so many."""
    joined = column.combine_chunks()
    lengths, values = joined.value_lengths(), joined.flatten()
    if values.null_count or not pc.all(pc.equal(lengths, channels), min_count=0).as_py():
        return None
    return np.asarray(values.to_numpy(), dtype=np.int64).reshape(-1, channels)


def records_fault(place: Place, rows: pa.Table) -> str | None:
    """Why the records of a part, in this file, are not those that its rows (`RECORD_COLUMNS`) tell of, if so."""
    told = zip(*(rows[name].to_pylist() for name in RECORD_COLUMNS), strict=True)
    with place.open_stream() as stream:
        for record in read_records(stream, str(place)):
            facts = parse_facts(record.data)
            if next(told, None) != (*facts, record.offset, record.size, record.crc32c):
                return f"{place} at offset {record.offset}: {facts.key} is not as its rows tell"
    left = next(told, None)
    return f"{place} does not hold {left[0]}, which its rows tell of" if left else None


def images_fault(place: Place, images: pa.Table) -> str | None:
    """Why a file of the source does not hold the images of its list where that tells, if so."""
    column = parquet_tables.facts_of(images).get("column")
    if column is None:
        starts, ends = images["offset"], pc.add(images["offset"], images["size"])
        if pc.any(pc.or_(pc.less(ends, starts), pc.greater(ends, place.info().size))).as_py():
            return f"the list of {place} tells of an image outside of it"
    try:
        for _, content in read_images(
            place, images.to_pylist(), "put the original list back", column, most_bytes=READ_BUFFER_BYTES
        ):
            if not isinstance(content, bytes):
                deque(content, maxlen=0)  # its SHA-256 is known behind its last piece
    except (RingsliceError, pa.ArrowException, ValueError, IndexError, OSError) as error:
        return f"{place} does not hold what its list tells: {str(error).splitlines()[0]}"
    return None


def facts_digest(facts: Mapping[str, Any], without: frozenset[str] = frozenset()) -> str:
    """A digest of facts, however long their counts by label are: of classes that came later there are none.

    ``without`` are facts that are left out. What are no facts, for they were forged, have one too.
    """
    if not _tells_counts(facts):
        return checksum_of({"forged": repr(facts)})
    told = {name: value for name, value in facts.items() if name not in without}
    if "examples" in told:
        told["examples"] = {split: _shortened(counts) for split, counts in told["examples"].items()}
    return checksum_of(told)


def _shortened(counts: Sequence[int]) -> list[int]:
    kept = list(counts)
    while kept and not kept[-1]:
        kept.pop()
    return kept
