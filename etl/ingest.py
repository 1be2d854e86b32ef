"""The stage ``ingest``: a source's images into packs under ``ROOT/raw``, byte for byte, with an image list for each."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from etl import tables
from etl.errors import DataError, UsageError
from etl.packs import PackPlan, TarWriter, content_sha256, pack_places, plan_packs
from etl.progress import Progress, tell
from etl.publishing import publishing
from etl.sources import Source, fingerprint, open_source
from etl.stages import RAW_FORMAT, Run, Stage, State, raw_stage
from etl.storage import Place
from etl.summary import Summary, ingest_summary


def ingest(source_place: Place, root: Place, values: Mapping[str, Any], overwrite: bool = False) -> Summary:
    """Pack the images of a source; ``values`` are those of `etl.options.INGEST_OPTIONS`.

    Goes on where an unfinished run of the same source stopped; does nothing where it is done.

    Raises UsageError where there is no source or the root holds another dataset, DataError where a file changes
    while it is read.
    """
    stage = raw_stage(root)
    source = open_source(source_place, values["split_folders"])
    config = {"pack_bytes": values["pack_size"], "split_folders": values["split_folders"]}
    listing = fingerprint(source.images, source.classes, versions=True)
    run = Run(source=str(source_place), listing=listing)
    identity = {"config": config, "input": fingerprint(source.images, source.classes, versions=False)}
    if stage.begin(identity, overwrite, listing) is State.DONE:
        _require_same_content(stage, source, listing)
        return ingest_summary(stage, already_done=True)
    try:
        packs = _write_packs(stage, source, list(plan_packs(source.images, config["pack_bytes"])))
        stage.commit(_marker(source, identity, packs), run)
    finally:
        stage.release()
    return ingest_summary(stage)


def _write_packs(stage: Stage, source: Source, plans: list[PackPlan]) -> list[dict[str, Any]]:
    packs = []
    with Progress("ingest", len(source.images), "images") as progress:
        done = 0
        for plan in plans:
            _, listed = pack_places(stage.folder, plan.name)
            if listed.exists():
                packs.append(tables.read_facts(listed) | {"list_sha256": listed.sha256()})
                done += len(plan.images)
                progress.skip(done)
                continue
            packs.append(_write_pack(stage, source, plan, progress, done))
            done += len(plan.images)
    return packs


def _write_pack(stage: Stage, source: Source, plan: PackPlan, progress: Progress, done: int) -> dict[str, Any]:
    rows = []
    tar_place, list_place = pack_places(stage.folder, plan.name)
    with publishing(tar_place, stage.attempts) as output:
        tar = TarWriter(output)
        for count, image in enumerate(plan.images, start=1):
            data = source.read(image)
            offset = tar.add(image.key, data)
            place = {"pack": plan.name, "offset": offset, "size": len(data), "sha256": content_sha256(data)}
            rows.append({"key": image.key, "label": image.label, "split": image.split, "group": None} | place)
            progress.update(done + count)
        tar.finish()
    facts = {"name": plan.name, "images": len(rows), "bytes": output.size_bytes, "sha256": output.sha256}
    listed = tables.write_table(list_place, stage.attempts, tables.table_of(tables.IMAGES, rows), facts)
    return facts | {"list_sha256": listed.sha256}


def _marker(source: Source, identity: dict[str, Any], packs: list[dict[str, Any]]) -> dict[str, Any]:
    labels = Counter(image.label for image in source.images)
    splits = Counter(image.split for image in source.images)
    return {
        "format": RAW_FORMAT,
        **identity,
        "kind": source.kind,
        "classes": source.classes,
        "pixels": source.pixels,
        "counts": {
            "images": len(source.images),
            "bytes": sum(image.size_bytes for image in source.images),
            "skipped": source.skipped,
            "by_class": [labels[label] for label in range(len(source.classes))],
            "by_split": {split: count for split, count in sorted(splits.items(), key=str) if split is not None},
        },
        "packs": packs,
    }


def _require_same_content(stage: Stage, source: Source, listing: str) -> None:
    """Where files were written again under the same names and sizes: compare their contents with what was packed."""
    if stage.read_run().get("listing") == listing:
        return
    tell("ingest", "the source's files were written again since; comparing their contents with the packs")
    images = iter(source.images)
    with Progress("ingest", len(source.images), "images") as progress:
        done = 0
        for pack in stage.read_marker()["packs"]:
            _, listed = pack_places(stage.folder, pack["name"])
            known = tables.read_table(listed, ["key", "sha256"]).to_pylist()
            for row, image in zip(known, images, strict=False):
                if row["key"] != image.key or row["sha256"] != content_sha256(source.read(image)):
                    raise UsageError(
                        f"{stage.folder} already holds other images (the content of {image.key} differs);"
                        " use another place, or --overwrite"
                    )
                done += 1
                progress.update(done)
    if done != len(source.images):
        raise DataError(
            f"{stage.folder} lists {done} images, its marker {len(source.images)}; ingest again with --overwrite"
        )
