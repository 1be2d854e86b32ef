"""The command ``ringslice report`` for the folders of runs."""

from collections.abc import Sequence

from etl.errors import UsageError
from etl.report.render import publish
from etl.stages.layout import check_target, folders_of
from etl.stages.summary import Summary
from etl.storage.place import Place, open_place
from train.report.comparison import gather_comparison
from train.report.run_files import is_run, read_run
from train.report.run_page import gather_run, steps_done
from train.report.text import RUN_FILTERS


def report_runs(folders: Sequence[Place], output: str | None) -> Summary:
    """Write the page of a run, or one that compares several, to ``output``; an existing file is replaced.

    The default is ``NAME-report.html`` or ``comparison-report.html`` in the current folder. Raises UsageError if a
    folder is not that of a run, is given twice or cannot be compared, or if no page can be written to ``output``;
    DataError if a file of a run is damaged.
    """
    name = "comparison" if len(folders) > 1 else folders[0].name
    file, seen = open_place(output or f"{name}-report.html"), set()
    for folder in folders:
        if not is_run(folder):
            raise UsageError(
                f"{folder} is neither the folder of a run (no metrics, no result.json) nor the only root of a dataset."
                " Give ROOT, or one or more ROOT/runs/NAME"
            )
        if (real := (folder.filesystem, folder.real_path)) in seen:
            raise UsageError(f"{folder} is given twice. Give each run once")
        seen.add(real)
        check_target(file, "-o", folders_of(folder.parent.parent) if folder.parent.name == "runs" else [folder])
    runs = [read_run(folder) for folder in folders]
    if len(runs) > 1:
        size_bytes = publish("train.report", "comparison.html", gather_comparison(runs), file, RUN_FILTERS)
        return Summary("report", file.uri, False, {"runs": [folder.uri for folder in folders], "bytes": size_bytes})
    (run,) = runs
    facts = {
        "run": run.folder.uri,
        "bytes": publish("train.report", "run.html", gather_run(run), file, RUN_FILTERS),
        "finished": run.result is not None,
        "epochs": len(run.epochs),
        "steps": steps_done(run),
        "missing": [name for name, _ in run.missing],
    }
    return Summary("report", file.uri, False, facts)
