"""The page of a training run, finished or not."""

from etl.publishing import replace_bytes
from etl.report.render import STAGE_FOLDERS, check_target, render
from etl.report.run_files import read_run
from etl.report.run_gather import gather_run, steps_done
from etl.storage import Place
from etl.summary import Summary


def write_run_report(folder: Place, file: Place) -> Summary:
    """Write the page of the run in ``folder`` to ``file``; one that is there is replaced.

    Raises UsageError where ``file`` cannot be a report's, DataError where a file of the run is damaged.
    """
    others = [folder.parent.parent / name for name in STAGE_FOLDERS] if folder.parent.name == "runs" else []
    check_target(file, [folder, *others])
    run = read_run(folder)
    page = render("run.html", gather_run(run)).encode()
    replace_bytes(file, file.parent, page)
    told = {
        "run": folder.uri,
        "bytes": len(page),
        "finished": run.result is not None,
        "epochs": len(run.epochs),
        "steps": steps_done(run),
        "missing": [name for name, _ in run.missing],
    }
    return Summary("report", file.uri, False, told)
