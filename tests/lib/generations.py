"""The packs and parts of a root, as its markers' tables have them; and tables with a defect."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from etl.stages.layout import normalized_stage, raw_stage
from etl.stages.marker import Generation
from etl.stages.stage import Stage
from etl.storage.place import Place, json_bytes, open_place

Entries = list[dict[str, Any]]


def packs_of(root: Path | Place) -> Entries:
    return list(raw_stage(open_place(str(root))).read_generation().entries)


def parts_of(root: Path | Place) -> Entries:
    return list(normalized_stage(open_place(str(root))).read_generation().entries)


def generation_of(stage: Stage, fingerprint: str) -> Generation:
    found = stage.find_generation(fingerprint)
    assert found is not None
    return found


def change_parts(root: Path, change: Callable[[Entries], object]) -> None:
    """Write the table of parts and the marker again, with what ``change`` makes of the entries."""
    stage = normalized_stage(open_place(str(root)))
    entries = parts_of(root)
    change(entries)
    assert stage.entries is not None
    staging = stage.work.make_folder()
    marker = stage.read_marker() | {stage.entries.name: stage.entries.publish(stage.folder, staging, entries)}
    staging.delete()
    (root / "normalized/dataset.json").write_bytes(json_bytes(marker))
