"""The page of a set of slices, by the names that its template has for what is on it."""

from collections.abc import Mapping
from typing import Any

from etl import __version__
from etl.formats import parquet_tables
from etl.report.dataset import charts
from etl.report.dataset.balance import (
    MAX_SLICES,
    Counts,
    class_extremes,
    class_matrix,
    class_rows,
    ends_of,
    split_balances,
)
from etl.report.dataset.costs import read_cost
from etl.report.dataset.origins import gather_origins
from etl.report.dataset.samples import sample_examples
from etl.report.dataset.verified import Verified, read_verified
from etl.report.text import brief, count, pixels, size, when
from etl.slices.manifest import slices_of
from etl.stages.layout import normalized_stage, raw_stage, verification_stage
from etl.stages.stage import Stage
from etl.storage.place import Place

SHOWN_EXTREME_SLICES = 8
CLASS_COUNT_COLUMNS = ["slice", "split", "label", "records"]
NUMBERS = {"records": "examples", "bytes": "bytes"}

Facts = dict[str, Any]


def gather(root: Place, stage: Stage, manifest: Mapping[str, Any]) -> Facts:
    """Read what there is; memory does not grow with the number of examples, and with slices as the manifest does.

    Raises DataError if a table beside the manifest is damaged.
    """
    counts = stage.folder / manifest["tables"]["class_counts"]["file"]
    names = [each["name"] for _, each in slices_of(manifest)]
    matrix = class_matrix(manifest, names, parquet_tables.iterate_groups(counts, CLASS_COUNT_COLUMNS))
    extremes = class_extremes(manifest, parquet_tables.iterate_groups(counts, CLASS_COUNT_COLUMNS[1:]))
    fingerprint = stage.fingerprint()
    verification = verification_stage(root, stage.folder.name)
    verified = read_verified(verification, fingerprint, manifest["classes"])
    facts = {
        "name": stage.folder.name,
        "root": root.uri,
        "version": __version__,
        "verified": verified,
        "splits": [{"name": name} for name in manifest["splits"]],
        "tiles": _tiles(manifest),
        "facts": _about(manifest, fingerprint, verified, stage),
        "balances": split_balances(manifest, extremes),
        **_classes(manifest),
        **_slices(manifest, matrix),
        **gather_origins(root, manifest),
    }
    shown = [row["label"] for row in facts["top_rows"] + facts["bottom_rows"]]
    return facts | {
        "mosaic": sample_examples(stage.folder, manifest, shown),
        "costs": [
            *(read_cost(each, facts["input_total"]) for each in (raw_stage(root), normalized_stage(root))),
            *(read_cost(each, _total(manifest, "records")) for each in (stage, verification)),
        ],
    }


def _total(manifest: Mapping[str, Any], what: str) -> int:
    return sum(split[what] for split in manifest["splits"].values())


def _tiles(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The few numbers that a reader looks for first: (number, what it counts)."""
    splits = manifest["splits"]
    return [
        (brief(_total(manifest, "records")), "examples"),
        (brief(len(manifest["classes"])), "classes"),
        *((brief(split["records"]), f"in {name}") for name, split in splits.items()),
        (brief(sum(len(split["slices"]) for split in splits.values())), "slices"),
        (size(_total(manifest, "bytes")), "of records"),
    ]


def _about(
    manifest: Mapping[str, Any], fingerprint: str, verified: Verified, stage: Stage
) -> list[tuple[str, str, bool]]:
    """(name, text, whether it is a fingerprint)."""
    config, image, statistics = manifest["config"], manifest["image"], manifest["statistics"]
    split = config["split"]
    shares = "the source's own" if split == "source" else ", ".join(f"{name} {share}" for name, share in split.items())
    state = {"sound": "nothing found", "findings": f"{count(verified.all_findings)} findings"}
    checked = state.get(verified.state, "of other slices of this name")
    if verified.every_stage:
        checked += ", packs and parts too"
    colors = {1: "gray", 3: "RGB"}[image["channels"]]
    return [
        ("images", f"{_image_size(image)}, {colors}, {image['format']}", False),
        ("splits", shares, False),
        ("partition", config["partition"], False),
        ("workers", count(config["workers"]), False),
        *([("groups", _groups(manifest["splits"]["train"]["groups"]), False)] if config["groups"] > 1 else []),
        ("seed", str(config["seed"]), False),
        ("mean, training", ", ".join(f"{value:.3f}" for value in statistics["mean"]), False),
        ("std, training", ", ".join(f"{value:.3f}" for value in statistics["std"]), False),
        *_choices(config, manifest),
        ("finished", when(stage.read_run().get("finished")), False),
        ("verified", f"{when(verified.finished)}: {checked}" if verified.finished else "not yet", False),
        ("manifest", fingerprint, True),
        ("made from", manifest["input"], True),
    ]


def _image_size(image: Mapping[str, Any]) -> str:
    return "of different sizes" if image["width"] is None else pixels(image["width"], image["height"])


def _groups(groups: list[dict[str, Any]]) -> str:
    records = [group["records"] for group in groups]
    return f"{len(groups)}, of {count(min(records))} to {count(max(records))} examples"


def _choices(config: Mapping[str, Any], manifest: Mapping[str, Any]) -> list[tuple[str, str, bool]]:
    """What was asked for beyond the usual, and what was left out for it."""
    found = []
    known, left_out = manifest["known"], manifest["left_out"]
    if config["group_by"]:
        found.append(("kept together", f"by {config['group_by']}: fractions are approximate", False))
    if config["splits_from"]:
        found.append(("splits from", config["splits_from"], True))
        kept = f"{count(known['kept'])} kept ({count(known['moved'])} under a new key)"
        found.append(("known images", f"{kept}, {count(known['changed'])} changed, {count(known['new'])} new", False))
    if config["removed_keys"]:
        found.append(("removed", f"{count(left_out['removed_keys'])} images, by a list", False))
    if config["drop_duplicates"]:
        found.append(("duplicates", f"dropped: {count(left_out['duplicates'])} images", False))
    return found


def _classes(manifest: Mapping[str, Any]) -> Facts:
    rows = class_rows(manifest)
    top, bottom = ends_of(rows)
    largest, smallest = max(rows, key=lambda row: row["total"]), min(rows, key=lambda row: row["total"])
    most, least = largest["total"], smallest["total"]
    note = f"The largest class, {largest['name']}, has {count(most)} examples"
    if len(rows) > 1:
        note += f"; the smallest, {smallest['name']}, {count(least)}"
        note += f" ({most / least:.3g} to 1)" if least else ""
    return {
        "class_note": f"{note}.",
        "class_number": len(rows),
        "class_names": manifest["classes"],
        "largest_class": max(1, largest["total"]),
        "top_rows": top,
        "bottom_rows": bottom,
        "hidden_classes": len(rows) - len(top) - len(bottom),
        "class_charts": [charts.class_curve([row["total"] for row in rows])] if bottom else [],
    }


def _slices(manifest: Mapping[str, Any], matrix: Counts | None) -> Facts:
    splits, slices = manifest["splits"], list(slices_of(manifest))
    labels = [(split, _label(each["name"])) for split, each in slices]
    drawn = [charts.class_map(matrix, manifest["classes"], labels)] if matrix is not None else []
    facts: Facts = {
        "matrix": None if matrix is None else matrix.tolist(),
        "slice_labels": [label for _, label in labels],
        "slice_charts": drawn,
    }
    if len(slices) <= MAX_SLICES:
        owners = [split for split, _ in slices]
        drawn += [charts.slice_bars([each[what] for _, each in slices], owners, word) for what, word in NUMBERS.items()]
        return facts | {"slice_rows": [each for _, each in slices], "slice_rows_title": f"All {len(slices)} slices"}
    for name, split in splits.items():
        for what, word in NUMBERS.items():
            drawn.append(charts.slice_histogram([each[what] for each in split["slices"]], name, word))
    by_bytes = sorted((each for _, each in slices), key=lambda each: (each["bytes"], each["name"]))
    title = f"The {SHOWN_EXTREME_SLICES} smallest and the {SHOWN_EXTREME_SLICES} largest of {count(len(slices))} slices"
    shown = by_bytes[:SHOWN_EXTREME_SLICES] + by_bytes[-SHOWN_EXTREME_SLICES:]
    return facts | {"slice_rows": shown, "slice_rows_title": title}


def _label(name: str) -> str:
    """``train-00003`` of ``train/group-0/worker-1/train-00003-of-00016``."""
    return name.rpartition("/")[2].partition("-of-")[0]
