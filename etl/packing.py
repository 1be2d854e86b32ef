"""Images of a source into packs, several packs at once; each is published whole, with its image list."""

from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from etl import tables
from etl.packs import PackPlan, TarWriter, content_sha256, pack_places, plan_packs
from etl.progress import Progress
from etl.publishing import publishing
from etl.sources import Source, SourceImage
from etl.stages import Stage
from etl.threads import in_threads

Row = dict[str, Any]


def write_packs(
    stage: Stage, source: Source, images: Iterable[SourceImage], first: int, *, pack_bytes: int, at_once: int
) -> list[Row]:
    """Write packs of these images, numbered from ``first``, ``at_once`` of them at the same time.

    Packs that are there already are kept. Returns what the marker says of each, in their order.
    """
    plans = list(plan_packs(images, pack_bytes, first))
    with Progress("ingest", sum(len(plan.images) for plan in plans), "images") as progress:
        packer = _Packer(stage, source, progress)
        missing = [plan for plan in plans if not pack_places(stage.folder, plan.name)[1].exists()]
        progress.skip(sum(len(plan.images) for plan in plans) - sum(len(plan.images) for plan in missing))
        in_threads(packer.write, _runs(source, missing), at_once)
        return [packer.facts(plan) for plan in plans]


def _runs(source: Source, plans: list[PackPlan]) -> Iterator[list[PackPlan]]:
    """Packs that are written one after the other: each alone, or where files must be read in order, those of a file."""
    if not source.is_sequential:
        return ([plan] for plan in plans)
    return (list(run) for _, run in groupby(plans, lambda plan: plan.images[0].position[0]))


class _Packer:
    """Writes packs, in several threads."""

    def __init__(self, stage: Stage, source: Source, progress: Progress) -> None:
        self._stage, self._source, self._progress = stage, source, progress
        self._written: dict[str, Row] = {}

    def write(self, plans: Sequence[PackPlan]) -> Generator[None]:
        """Write these packs, one after the other; stops to yield after each image."""
        contents = self._source.read_all([image for plan in plans for image in plan.images])
        for plan in plans:
            yield from self._write_pack(plan, contents)

    def facts(self, plan: PackPlan) -> Row:
        """What the marker says of a pack that this run, or one that it goes on with, has written."""
        if plan.name in self._written:
            return self._written[plan.name]
        _, listed = pack_places(self._stage.folder, plan.name)
        return tables.read_facts(listed) | {"list_sha256": listed.sha256(), "removed": 0}

    def _write_pack(self, plan: PackPlan, contents: Iterator[bytes]) -> Generator[None]:
        rows = []
        tar_place, list_place = pack_places(self._stage.folder, plan.name)
        with publishing(tar_place, self._stage.attempts) as output:
            tar = TarWriter(output)
            for image in plan.images:
                data = next(contents)
                offset = tar.add(image.key, data)
                known = {"key": image.key, "label": image.label, "split": image.split, "columns": image.columns}
                place = {"pack": plan.name, "offset": offset, "size": len(data), "sha256": content_sha256(data)}
                rows.append(known | place)
                self._progress.advance()
                yield
            tar.finish()
        facts = {"name": plan.name, "images": len(rows), "bytes": output.size_bytes, "sha256": output.sha256}
        listed = tables.write_table(list_place, self._stage.attempts, tables.table_of(tables.IMAGES, rows), facts)
        self._written[plan.name] = facts | {"list_sha256": listed.sha256, "removed": 0}
