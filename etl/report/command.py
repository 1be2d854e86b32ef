"""The page of a set of slices, and which page the places ask for."""

from collections.abc import Sequence

from etl.errors import UsageError
from etl.report.dataset.page import gather
from etl.report.render import check_target, folders_of, publish
from etl.report.run.compare import write_comparison
from etl.report.run.files import is_run
from etl.report.run.page import write_run_report
from etl.slices.manifest import read_manifest
from etl.stages.layout import is_root, slices_stage
from etl.stages.names import STAGE_FOLDERS
from etl.stages.summary import Summary
from etl.storage.place import Place, open_place

DEFAULT_SLICES = "default"
COMPARISON = "comparison-report.html"


def report_on(places: Sequence[Place], name: str | None, output: str | None) -> Summary:
    """Write a page: of the slices called ``name`` below a root, of a run, or of several runs that it compares.

    It goes to ``output``, else to ``NAME-report.html`` in the current folder. Raises UsageError if a place is neither,
    else as `write_report`, `write_run_report` and `write_comparison` do.
    """
    place, *others = places
    if name is not None and (others or is_run(place)):
        raise UsageError(f"--name {name!r} is of slices, and {place} is not the one root. Leave it out")
    if others:
        return write_comparison(places, open_place(output or COMPARISON))
    if is_run(place):
        return write_run_report(place, open_place(output or f"{place.name}-report.html"))
    if not is_root(place):
        raise UsageError(
            f"{place} is neither a dataset's root (no {STAGE_FOLDERS[0]}, no slices) nor the folder of a run (no"
            " metrics, no result.json); give ROOT, or ROOT/runs/NAME"
        )
    chosen = DEFAULT_SLICES if name is None else name
    return write_report(place, chosen, open_place(output or f"{chosen}-report.html"))


def write_report(root: Place, name: str, file: Place) -> Summary:
    """Write the page of the slices called ``name`` to ``file``; one that is there is replaced.

    Raises UsageError if there are no such slices or ``file`` cannot be a report's, DataError if a table beside
    the manifest is damaged.
    """
    stage = slices_stage(root, name)
    manifest = read_manifest(stage)
    check_target(file, folders_of(root))
    facts = gather(root, stage, manifest)
    counts = {
        "slices": stage.folder.uri,
        "bytes": publish("report.html", facts, file),
        "examples_shown": sum(map(len, facts["mosaic"].values())),
        "rejects_shown": sum(len(pictures) for _, _, pictures in facts["rejects"] or ()),
        "verified": facts["verified"].state,
    }
    return Summary("report", file.uri, False, counts)
