"""Packs: tar files of images, with an image list beside each; or the source's own files, of which only lists are made.

Headers are POSIX pax (IEEE Std 1003.1-2001) with every field that could tell when or by whom set to a constant: the
same images, the same bytes. Several packs are written at once, each published whole. Which images of packs the source
no longer has, or not unchanged, is in a table of removed rows.
"""

import hashlib
import tarfile
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from operator import attrgetter
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from etl.errors import DataError, UsageError
from etl.formats import parquet_tables, schemas
from etl.progress import Progress
from etl.sources.base import Content, LargeFile, Source, SourceImage, require_same
from etl.stages.marker import publish_named
from etl.stages.run import Run
from etl.storage.atomic import OutputFile, publish_stream
from etl.storage.place import Place, open_place
from etl.threads import in_threads

MAX_IMAGES = 10_000  # so that a mapper has no more rows than that in memory, and tiny images make more than one task
REMOVED_FOLDER = "removed"
NO_COPY = "put it back, or ingest again with --overwrite"  # if a file of raw is missing or damaged

Mask = npt.NDArray[np.bool_]


def list_place(raw: Place, pack: str) -> Place:
    """The image list of a pack."""
    return raw / "packs" / f"{pack}.parquet"


def pack_place(raw: Place, pack: str, file: str | None = None) -> Place:
    """The file with a pack's images; ``file`` is its URI if it is the source's own, left where it lies."""
    return open_place(file) if file else raw / "packs" / f"{pack}.tar"


def write_member(tar: OutputFile, name: str, content: Content, size_bytes: int) -> tuple[int, bytes]:
    """Append a member, which is whole or comes in pieces; returns the offset of its bytes, and their SHA-256."""
    header = tarfile.TarInfo(name)
    header.size = size_bytes
    tar.write(header.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict"))
    offset, digest = tar.size_bytes, hashlib.sha256()
    for piece in pieces(content):
        tar.write(piece)
        digest.update(piece)
    if tar.size_bytes - offset != size_bytes:
        raise DataError(f"{name} is not the file of {size_bytes} bytes that it was; run again")
    tar.write(bytes(-size_bytes % tarfile.BLOCKSIZE))
    return offset, digest.digest()


def write_end(tar: OutputFile) -> None:
    """Write the end of an archive: two empty blocks, up to a whole record."""
    tar.write(bytes(2 * tarfile.BLOCKSIZE))
    tar.write(bytes(-tar.size_bytes % tarfile.RECORDSIZE))


def pieces(content: Content) -> Iterable[bytes]:
    """An image file's bytes, one after the other, where they are whole too."""
    return (content,) if isinstance(content, bytes) else content


def content_sha256(content: Content) -> bytes:
    """SHA-256 of an image file's bytes, as 32 bytes."""
    digest = hashlib.sha256()
    for piece in pieces(content):
        digest.update(piece)
    return digest.digest()


@dataclass(frozen=True)
class PackPlan:
    """The images that go into one pack, in order."""

    name: str
    images: tuple[SourceImage, ...]


def _plan(batches: Iterable[Sequence[SourceImage]], first: int) -> Iterator[PackPlan]:
    """Packs of these images, numbered from ``first`` on."""
    return (PackPlan(f"pack-{number:05d}", tuple(batch)) for number, batch in enumerate(batches, first))


def _by_size(images: Iterable[SourceImage], pack_bytes: int) -> Iterator[list[SourceImage]]:
    """The images, in order, in batches of about ``pack_bytes`` and at most `MAX_IMAGES`; none is empty."""
    batch, size = list[SourceImage](), 0
    for image in images:
        if len(batch) == MAX_IMAGES or (batch and size + image.size_bytes > pack_bytes):
            yield batch
            batch, size = [], 0
        batch.append(image)
        size += image.size_bytes
    if batch:
        yield batch


def _by_file(images: Iterable[SourceImage]) -> Iterator[list[SourceImage]]:
    """The images of each file of a source, which come one after the other, in batches of at most `MAX_IMAGES`."""
    for _, run in groupby(images, lambda image: image.position[0]):
        while batch := list(islice(run, MAX_IMAGES)):
            yield batch


# Makes the pack of a plan from the contents of its images; yields after each, and returns rows and facts.
Make = Callable[[PackPlan, Iterator[Content]], Generator[None, None, tuple[list[dict[str, Any]], dict[str, Any]]]]


def copy_to_packs(
    run: Run, source: Source, images: Iterable[SourceImage], first: int, *, pack_bytes: int, at_once: int
) -> list[dict[str, Any]]:
    """Write packs of these images, numbered from ``first``, ``at_once`` of them at the same time.

    Packs that exist are kept. Returns the marker's entry of each, in their order. Raises DataError for a file that
    changed since the source was listed.
    """

    def copy_pack(plan: PackPlan, contents: Iterator[Content]) -> Any:
        """Publish a tar file of the images."""
        rows = []
        with publish_stream(pack_place(run.folder, plan.name), run.staging) as tar:
            for image in plan.images:
                rows.append(_row(plan, image, *write_member(tar, image.key, next(contents), image.size_bytes)))
                yield
            write_end(tar)
        return rows, {"bytes": tar.size_bytes, "sha256": tar.sha256}

    plans = _plan(_by_size(images, pack_bytes), first)
    runs = groupby(plans, _file_of if source.is_sequential else attrgetter("name"))
    return _make_packs(run, source, [list(group) for _, group in runs], copy_pack, at_once)


def list_in_place(
    run: Run, source: Source, images: Iterable[SourceImage], first: int, *, at_once: int
) -> list[dict[str, Any]]:
    """As `copy_to_packs`, but each file of the source is a pack as it is, and only the lists are written.

    One of many images is several packs, which share it.
    """
    files = source.large_files()
    hashes = dict[int, str]()  # each of one run, that is of one thread

    def list_pack(plan: PackPlan, contents: Iterator[Content]) -> Any:
        """Hash the images and their file, which stays where it is."""
        rows = []
        file = files[number := _file_of(plan)]
        for image in plan.images:
            rows.append(_row(plan, image, image.position[1], content_sha256(next(contents))))
            yield
        hashes[number] = hashes.get(number) or file.place.sha256()
        require_same(file.place, file.listed)
        facts = {"bytes": file.listed.size, "sha256": hashes[number], "file": file.place.uri}
        return rows, facts | ({"column": file.column} if file.column else {})

    runs = [list(group) for _, group in groupby(_plan(_by_file(images), first), _file_of)]
    return _make_packs(run, source, runs, list_pack, at_once)


def require_same_storage(files: Sequence[LargeFile], root_uri: str) -> None:
    """Raise UsageError if tasks that reach the root may not reach the files that are to stay where they lie."""
    for file in files if root_uri.startswith("hdfs://") else ():
        if not file.place.uri.startswith("hdfs://"):
            raise UsageError(
                f"--in-place: {file.place} is not on HDFS as {root_uri} is, and tasks on other nodes would not find it;"
                " put it there, or leave --in-place out"
            )


def _make_packs(
    run: Run, source: Source, runs: Sequence[Sequence[PackPlan]], make: Make, at_once: int
) -> list[dict[str, Any]]:
    """Make the packs of each run one after the other, and ``at_once`` runs at the same time; returns their entries."""
    made = dict[str, dict[str, Any]]()
    missing = [[plan for plan in plans if not list_place(run.folder, plan.name).exists()] for plans in runs]
    images = sum(len(plan.images) for plans in runs for plan in plans)
    with Progress("ingest", images, "images") as progress:
        progress.skip(images - sum(len(plan.images) for plans in missing for plan in plans))

        def work(plans: Sequence[PackPlan]) -> Generator[None]:
            contents = source.read_all([image for plan in plans for image in plan.images])
            for plan in plans:
                rows, facts = yield from make(plan, _counted(contents, progress))
                facts = {"name": plan.name, "images": len(rows), **facts}
                table = parquet_tables.table_of(schemas.IMAGES, rows)
                listed = parquet_tables.write_table(list_place(run.folder, plan.name), run.staging, table, facts)
                made[plan.name] = facts | {"list_sha256": listed.sha256, "removed": 0}

        in_threads(work, filter(None, missing), at_once)
    return [made.get(plan.name) or _entry(list_place(run.folder, plan.name)) for plans in runs for plan in plans]


def _entry(listed: Place) -> dict[str, Any]:
    """The marker's entry of a pack that a run made which this one continues."""
    return parquet_tables.read_facts(listed) | {"list_sha256": listed.sha256(), "removed": 0}


def _counted(contents: Iterator[Content], progress: Progress) -> Iterator[Content]:
    for content in contents:
        progress.advance()
        yield content


def _file_of(plan: PackPlan) -> int:
    return plan.images[0].position[0]


def _row(plan: PackPlan, image: SourceImage, offset: int, sha256: bytes) -> dict[str, Any]:
    known = {"key": image.key, "label": image.label, "split": image.split, "columns": image.columns}
    return known | {"pack": plan.name, "offset": offset, "size": image.size_bytes, "sha256": sha256}


class RemovedRows:
    """The keys of the removed rows of each pack, all in memory."""

    def __init__(self, table: pa.Table) -> None:
        keys, packs = table["key"].combine_chunks(), table["pack"].combine_chunks().dictionary_encode()
        numbers, names = packs.indices.to_numpy(), packs.dictionary.to_pylist()
        ends = np.cumsum(np.bincount(numbers, minlength=len(names)))
        rows = np.split(np.argsort(numbers, kind="stable"), ends)  # and after the last one nothing
        self._keys = {name: keys.take(pa.array(own)) for name, own in zip(names, rows, strict=False)}

    @classmethod
    def read(cls, root: Place, marker: Mapping[str, Any]) -> Self:
        """The table that ``marker``, of ``raw`` or of ``normalized``, names.

        Raises DataError if it is damaged or has another number of rows.
        """
        recorded = marker["removed"]
        if recorded is None:
            return cls(schemas.REMOVED.empty_table())
        place, rows = root / "raw" / recorded["file"], recorded["rows"]
        table = parquet_tables.read_table(place, ["pack", "key"], NO_COPY)
        if table.num_rows != rows:
            raise DataError(f"{place} has {table.num_rows} rows, {rows} were written; ingest with --overwrite")
        return cls(table)

    def number(self, pack: str) -> int:
        """The number of removed rows of a pack."""
        return len(self._keys.get(pack, ()))

    def live(self, pack: str, keys: pa.Array | pa.ChunkedArray) -> Mask:
        """True if the image of each of these keys, of rows of one pack or its part, is live: bool of shape (rows,)."""
        if pack not in self._keys:
            return np.ones(len(keys), dtype=np.bool_)
        import pyarrow.compute as pc  # a quarter of what a task takes to start, which needs none of it

        return ~np.asarray(pc.is_in(keys, value_set=self._keys[pack]))

    def filter(self, pack: str, rows: pa.Table) -> pa.Table:
        """Those ``rows`` (column key), of one pack or its part, whose images are live."""
        return rows.filter(pa.array(self.live(pack, rows["key"]))) if pack in self._keys else rows


def publish_removed(raw: Place, staging: Place, table: pa.Table) -> dict[str, Any] | None:
    """Publish a table of removed rows (`etl.formats.schemas.REMOVED`); returns its entry for markers, None if it is
    empty.
    """
    return publish_named(raw, REMOVED_FOLDER, staging, table, digits=16) if table.num_rows else None
