"""The command ``ringslice report`` for a set of slices."""

from etl.report.dataset.page import gather
from etl.report.render import check_target, folders_of, publish
from etl.slices.manifest import read_manifest
from etl.stages.layout import slices_stage
from etl.stages.summary import Summary
from etl.storage.place import Place, open_place


def report_slices(root: Place, name: str, output: str | None) -> Summary:
    """Write the page of the slices called ``name`` to ``output``; an existing file is replaced.

    The default is ``NAME-report.html`` in the current folder. Raises UsageError if there are no such slices or no page
    can be written to ``output``, DataError if a table beside the manifest is damaged.
    """
    stage = slices_stage(root, name)
    manifest, file = read_manifest(stage), open_place(output or f"{name}-report.html")
    check_target(file, folders_of(root))
    facts = gather(root, stage, manifest)
    counts = {
        "slices": stage.folder.uri,
        "bytes": publish("etl.report", "dataset.html", facts, file),
        "examples_shown": sum(map(len, facts["mosaic"].values())),
        "rejects_shown": sum(len(pictures) for _, _, pictures in facts["rejects"] or ()),
        "verified": facts["verified"].state,
    }
    return Summary("report", file.uri, False, counts)
