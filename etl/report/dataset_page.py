"""Write the page of a set of slices: gather what its template shows, by the template's names."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from etl import __version__
from etl.formats import parquet_tables
from etl.report import balance
from etl.report.pictures import gather_sources, sample_examples
from etl.report.render import brief, count, pixels, publish, size, when
from etl.slices.manifest import read_slices, slices_of
from etl.stages.layout import check_target, folders_of, normalized_stage, raw_stage, slices_stage, verification_stage
from etl.stages.marker import Generation
from etl.stages.stage import Stage
from etl.stages.summary import Summary, text_of
from etl.storage.place import Place, open_place

SHOWN_EXTREME_SLICES = 8
SHOWN_FINDINGS = 20
SHOWN_CONTENTS = 20
SHOWN_KEYS = 12
SHOWN_APART = ("started", "finished", "seconds", "host", "user", "runner", "command", "python", "versions", "counters")

Facts = dict[str, Any]


def report_slices(root: Place, name: str, output: str | None) -> Summary:
    """Write the page of the slices called ``name`` to ``output``; an existing file is replaced.

    The default is ``NAME-report.html`` in the current folder. Raises UsageError if there are no such slices or no page
    can be written to ``output``, DataError if a table beside the manifest is damaged.
    """
    stage = slices_stage(root, name)
    slices, file = read_slices(stage), open_place(output or f"{name}-report.html")
    check_target(file, "-o", folders_of(root))
    facts = gather(root, stage, slices)
    counts = {
        "slices": stage.folder.uri,
        "bytes": publish("etl.report", "dataset.html", facts, file),
        "examples_shown": sum(map(len, facts["mosaic"].values())),
        "rejects_shown": sum(len(pictures) for _, _, pictures in facts["rejects"] or ()),
        "verified": facts["verified"]["state"],
    }
    return Summary("report", file.uri, False, counts)


def gather(root: Place, stage: Stage, slices: Generation) -> Facts:
    """Read what there is; memory does not grow with the number of examples, and with slices as the manifest does.

    Raises DataError if a table beside the manifest is damaged.
    """
    manifest, verification = slices.marker, verification_stage(root, stage.folder.name)
    table = stage.folder / manifest["tables"]["class_counts"]["file"]
    counts = balance.count_classes(manifest, parquet_tables.iterate_groups(table, balance.COLUMNS))
    verified = read_verified(verification, slices.fingerprint, manifest["classes"])
    facts = {
        "name": stage.folder.name,
        "root": root.uri,
        "version": __version__,
        "verified": verified,
        "splits": [{"name": name} for name in manifest["splits"]],
        "tiles": _tiles(manifest),
        "facts": _about(manifest, slices.fingerprint, verified, stage),
        "balances": balance.split_balances(manifest, counts),
        **_classes(manifest),
        **_slices(manifest),
        **gather_sources(root, manifest),
    }
    images = {raw_stage(root): facts["input_total"], normalized_stage(root): facts["input_total"]}
    images |= dict.fromkeys((stage, verification), _total(manifest, "records"))
    return facts | {
        "mosaic": sample_examples(stage.folder, manifest, [row["label"] for row in facts["shown_classes"]]),
        "costs": [read_cost(each, number) for each, number in images.items()],
    }


def read_verified(stage: Stage, slices: str, classes: Sequence[str]) -> Facts:
    """From the finished ``verify`` of the slices whose fingerprint is ``slices``, by the template's names.

    ``state`` is 'sound', 'findings', 'outdated' (of other slices of this name) or 'unknown' (never verified).
    """
    found: Facts = {"state": "unknown", "finished": None, "duplicates": None, "contents": []}
    if not stage.marker.exists():
        return found
    marker, finished = stage.read_marker(), stage.read_run().get("finished")
    if marker["input"] != slices:
        return found | {"state": "outdated", "finished": finished}
    findings, duplicates = marker["findings"], marker["duplicates"]
    return {
        "state": "findings" if findings else "sound",
        "finished": finished,
        "findings": findings[:SHOWN_FINDINGS],
        "all_findings": len(findings) + marker.get("more_findings", 0),
        "every_stage": marker["config"]["every_stage"],
        "duplicates": duplicates,
        "contents": _contents(stage.folder / marker["tables"]["duplicates"]["file"], classes) if duplicates else [],
    }


def _contents(place: Place, classes: Sequence[str]) -> list[Facts]:
    """The contents to show, those in several splits first: ``examples`` are the first (key, class, split) of each."""
    across, others = list[Facts](), list[Facts]()
    for content in _each_content(place, classes):
        alike = across if content["across_splits"] else others
        alike += [content] if len(alike) < SHOWN_CONTENTS else []
        if len(across) == SHOWN_CONTENTS:
            break
    return (across + others)[:SHOWN_CONTENTS]


def _each_content(place: Place, classes: Sequence[str]) -> Iterator[Facts]:
    """The contents in the table of duplicates, which is sorted by them; one row group is in memory at once."""
    groups = parquet_tables.iterate_groups(place, ["sha256", "key", "label", "split"])
    rows = (row for group in groups for row in group.to_pylist())
    for sha256, copies in groupby(rows, itemgetter("sha256")):
        examples, splits, labels, number = list[tuple[str, str, str]](), set[str](), set[int](), 0
        for number, row in enumerate(copies, start=1):
            splits.add(row["split"])
            labels.add(row["label"])
            if number <= SHOWN_KEYS:
                examples.append((row["key"], classes[row["label"]], row["split"]))
        yield {
            "sha256": sha256.hex(),
            "examples": examples,
            "number": number,
            "across_splits": len(splits) > 1,
            "across_classes": len(labels) > 1,
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


def _about(manifest: Mapping[str, Any], fingerprint: str, verified: Facts, stage: Stage) -> list[tuple[str, str, bool]]:
    """Facts of the slices: name, text, and whether that is a fingerprint."""
    config, image, statistics = manifest["config"], manifest["image"], manifest["statistics"]
    split, is_verified = config["split"], verified["state"] != "unknown"
    shares = "the source's own" if split == "source" else ", ".join(f"{name} {share}" for name, share in split.items())
    checked = "of other slices of this name"
    if "findings" in verified:
        number = verified["all_findings"]
        checked = f"{count(number)} finding{'s' * (number != 1)}" if number else "nothing found"
        if verified["every_stage"]:
            checked += ", packs and parts too"
    colors = {1: "gray", 3: "RGB"}[image["channels"]]
    sides = "of different sizes" if image["width"] is None else pixels(image["width"], image["height"])
    groups = [group["records"] for group in manifest["splits"]["train"].get("groups", ())]
    of_groups = f"{len(groups)}, of {count(min(groups))} to {count(max(groups))} examples" if groups else ""
    return [
        ("images", f"{sides}, {colors}, {image['format']}", False),
        ("splits", shares, False),
        ("partition", config["partition"], False),
        ("workers", count(config["workers"]), False),
        *([("groups", of_groups, False)] if groups else []),
        ("seed", str(config["seed"]), False),
        ("mean, training", ", ".join(f"{value:.3f}" for value in statistics["mean"]), False),
        ("std, training", ", ".join(f"{value:.3f}" for value in statistics["std"]), False),
        *_choices(config, manifest),
        ("finished", when(stage.read_run().get("finished")), False),
        ("verified", f"{when(verified['finished'])}: {checked}" if is_verified else "not yet", False),
        ("manifest", fingerprint, True),
        ("made from", manifest["input"], True),
    ]


def _choices(config: Mapping[str, Any], manifest: Mapping[str, Any]) -> list[tuple[str, str, bool]]:
    """Options that differ from the defaults, and how many images they left out."""
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
    rows = balance.class_rows(manifest)
    top, bottom = balance.ends_of(rows)
    totals = {row["name"]: row["total"] for row in rows}
    largest, smallest = max(totals, key=totals.__getitem__), min(totals, key=totals.__getitem__)
    note = f"The largest class, {largest}, has {count(totals[largest])} examples"
    if len(rows) > 1:
        note += f"; the smallest, {smallest}, {count(totals[smallest])}"
    return {
        "class_note": f"{note}.",
        "class_number": len(rows),
        "class_names": manifest["classes"],
        "largest_class": max(1, totals[largest]),
        "shown_classes": top + bottom,
        "top_classes": len(top),
        "hidden_classes": len(rows) - len(top) - len(bottom),
        "class_charts": [
            balance.ranked_chart("All classes by size", "classes, largest first", {"examples": list(totals.values())})
        ]
        if bottom
        else [],
    }


def _slices(manifest: Mapping[str, Any]) -> Facts:
    slices = [each for _, each in slices_of(manifest)]
    charts = []
    for title, what, unit in (("Examples per slice", "records", 1), ("Megabytes per slice", "bytes", 10**6)):
        numbers = {name: [each[what] / unit for each in split["slices"]] for name, split in manifest["splits"].items()}
        charts.append(balance.ranked_chart(title, "slices, largest first", numbers))
    shown, title = slices, f"All {count(len(slices))} slices"
    if len(slices) > balance.MAX_SLICES:
        by_bytes = sorted(shown, key=lambda each: (each["bytes"], each["name"]))
        shown = by_bytes[:SHOWN_EXTREME_SLICES] + by_bytes[-SHOWN_EXTREME_SLICES:]
        title = f"The {SHOWN_EXTREME_SLICES} smallest and {SHOWN_EXTREME_SLICES} largest of {count(len(slices))} slices"
    return {
        "slice_charts": charts,
        "slice_rows": shown,
        "slice_rows_title": title,
    }


def read_cost(stage: Stage, images: int | None) -> Facts:
    """What the run cost that finished ``stage``, which processed so many images (None: not known), by its ``run.json``.

    ``details`` are its command, counters and versions, as text by name.
    """
    run = stage.read_run() if stage.marker.exists() else {}
    if not run:
        return {"stage": stage.name, "known": False, "details": []}
    details = [("command", " ".join(run["command"]))] if run.get("command") else []
    details += [(name, text_of(value)) for name, value in run.items() if name not in SHOWN_APART and value is not None]
    details += [(f"counted {name}", text_of(value)) for name, value in sorted(run.get("counters", {}).items())]
    versions = {"python": run.get("python"), **run.get("versions", {})}
    details.append(("versions", ", ".join(f"{name} {version}" for name, version in versions.items() if version)))
    processed = run.get("packed", run.get("decoded", images)) or 0  # of a renewal, what was new
    seconds = run.get("seconds", 0.0)
    facts = {"images": processed, "seconds": seconds, "images_per_s": processed / seconds if seconds else None}
    texts = {name: run.get(name) or "" for name in ("runner", "host", "finished")}
    return {"stage": stage.name, "known": True, "details": details, **facts, **texts}
