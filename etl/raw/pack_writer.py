"""Images of a source into packs, several at once, each published whole; or lists of images that stay where they lie."""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from operator import attrgetter
from typing import Any

from etl.errors import UsageError
from etl.formats import parquet_tables, schemas
from etl.progress import Progress
from etl.raw.packs import TarWriter, content_sha256, list_place, pack_place
from etl.sources import Source, SourceImage
from etl.sources.base import Content, LargeFile
from etl.stages.run import Run
from etl.storage.atomic import publishing
from etl.threads import in_threads

MOST_IMAGES = 10_000  # so that a mapper has no more rows than that in memory, and tiny images make more than one task


@dataclass(frozen=True)
class PackPlan:
    """The images that go into one pack, in order."""

    name: str
    images: tuple[SourceImage, ...]


def pack_name(number: int) -> str:
    return f"pack-{number:05d}"


def plan_packs(images: Iterable[SourceImage], pack_bytes: int, first: int = 0) -> Iterator[PackPlan]:
    """Deal ``images``, in order, to packs of about ``pack_bytes`` and at most `MOST_IMAGES`; none is empty.

    They are numbered from ``first`` on.
    """
    number, batch, size = first, list[SourceImage](), 0
    for image in images:
        if len(batch) == MOST_IMAGES or (batch and size + image.size_bytes > pack_bytes):
            yield PackPlan(pack_name(number), tuple(batch))
            number, batch, size = number + 1, [], 0
        batch.append(image)
        size += image.size_bytes
    if batch:
        yield PackPlan(pack_name(number), tuple(batch))


def plan_files(images: Iterable[SourceImage], first: int = 0) -> Iterator[PackPlan]:
    """The images of each file of a source, which come one after the other, as packs of at most `MOST_IMAGES`."""
    number = first
    for _, run in groupby(images, lambda image: image.position[0]):
        while batch := tuple(islice(run, MOST_IMAGES)):
            yield PackPlan(pack_name(number), batch)
            number += 1


# Makes the pack of a plan from the contents of its images; stops to yield after each, and returns rows and facts.
Make = Callable[[PackPlan, Iterator[Content]], Generator[None, None, tuple[list[dict[str, Any]], dict[str, Any]]]]


def copy_to_packs(
    run: Run, source: Source, images: Iterable[SourceImage], first: int, *, pack_bytes: int, at_once: int
) -> list[dict[str, Any]]:
    """Write packs of these images, numbered from ``first``, ``at_once`` of them at the same time.

    Packs that exist are kept. Returns the marker's entry of each, in their order.
    """
    plans = list(plan_packs(images, pack_bytes, first))
    runs = groupby(plans, _file_of if source.is_sequential else attrgetter("name"))

    def copy(
        plan: PackPlan, contents: Iterator[Content]
    ) -> Generator[None, None, tuple[list[dict[str, Any]], dict[str, Any]]]:
        rows = []
        with publishing(pack_place(run.folder, plan.name), run.staging) as output:
            tar = TarWriter(output)
            for image in plan.images:
                rows.append(_row(plan, image, *tar.add(image.key, next(contents), image.size_bytes)))
                yield
            tar.finish()
        return rows, {"bytes": output.size_bytes, "sha256": output.sha256}

    return _Packer(run, source, copy).pack([list(group) for _, group in runs], at_once)


def list_in_place(
    run: Run, source: Source, images: Iterable[SourceImage], first: int, *, at_once: int
) -> list[dict[str, Any]]:
    """As `copy_to_packs`, but each file of the source is a pack as it is, and only the lists are written.

    One of many images is several packs, which share it.
    """
    files = source.large_files()
    runs = [list(group) for _, group in groupby(plan_files(images, first), _file_of)]
    hashes = dict[int, str]()  # each of one run, that is of one thread

    def look(
        plan: PackPlan, contents: Iterator[Content]
    ) -> Generator[None, None, tuple[list[dict[str, Any]], dict[str, Any]]]:
        rows = []
        file = files[number := _file_of(plan)]
        for image in plan.images:
            rows.append(_row(plan, image, image.position[1], content_sha256(next(contents))))
            yield
        hashes[number] = hashes.get(number) or file.place.sha256()
        facts = {"bytes": file.place.info().size, "sha256": hashes[number], "file": file.place.uri}
        return rows, facts | ({"column": file.column} if file.column else {})

    return _Packer(run, source, look).pack(runs, at_once)


def require_same_storage(files: Sequence[LargeFile], root_uri: str) -> None:
    """Raise UsageError where tasks that reach the root may not reach the files that are to stay where they lie."""
    scheme = root_uri.partition("://")[0]
    for file in files:
        if scheme == "hdfs" and not file.place.uri.startswith("hdfs://"):
            raise UsageError(
                f"--in-place: {file.place} is not on HDFS as {root_uri} is, and tasks on other nodes would not find it;"
                " put it there, or leave --in-place out"
            )


class _Packer:
    """Makes packs, in several threads."""

    def __init__(self, run: Run, source: Source, make: Make) -> None:
        self._run, self._source, self._make = run, source, make
        self._made: dict[str, dict[str, Any]] = {}

    def pack(self, runs: Sequence[Sequence[PackPlan]], at_once: int) -> list[dict[str, Any]]:
        """Make the packs of each run one after the other, and ``at_once`` runs at the same time."""
        plans = [plan for run in runs for plan in run]
        missing = [[plan for plan in run if not list_place(self._run.folder, plan.name).exists()] for run in runs]
        images = sum(len(plan.images) for plan in plans)
        with Progress("ingest", images, "images") as progress:
            progress.skip(images - sum(len(plan.images) for run in missing for plan in run))

            def work(run: Sequence[PackPlan]) -> Generator[None]:
                contents = self._source.read_all([image for plan in run for image in plan.images])
                for plan in run:
                    yield from self._publish(plan, contents, progress)

            in_threads(work, filter(None, missing), at_once)
        return [self._facts(plan) for plan in plans]

    def _publish(self, plan: PackPlan, contents: Iterator[Content], progress: Progress) -> Generator[None]:
        rows, made = yield from self._make(plan, _counted(contents, progress))
        facts = {"name": plan.name, "images": len(rows), **made}
        table = parquet_tables.table_of(schemas.IMAGES, rows)
        listed = parquet_tables.write_table(list_place(self._run.folder, plan.name), self._run.staging, table, facts)
        self._made[plan.name] = facts | {"list_sha256": listed.sha256, "removed": 0}

    def _facts(self, plan: PackPlan) -> dict[str, Any]:
        """The marker's entry of a pack that this run, or one that it goes on with, has made."""
        if plan.name in self._made:
            return self._made[plan.name]
        listed = list_place(self._run.folder, plan.name)
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
