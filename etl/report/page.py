"""The page of a set of slices: what was gathered, put into the template, and written as one HTML file."""

from collections.abc import Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from etl.errors import UsageError
from etl.manifest import read_manifest
from etl.publishing import replace_bytes
from etl.report.gather import gather
from etl.report.wording import FILTERS
from etl.stages import slices_stage
from etl.storage import Place
from etl.summary import Summary

STAGE_FOLDERS = ("raw", "normalized", "slices", "verified", "runs")


def write_report(root: Place, name: str, file: Place) -> Summary:
    """Write the page of the slices called ``name`` to ``file``; one that is there is replaced.

    Raises UsageError where there are no such slices or ``file`` cannot be a report's, DataError where a table beside
    the manifest is damaged.
    """
    stage = slices_stage(root, name)
    manifest = read_manifest(stage)
    _check_target(root, file)
    facts = gather(root, stage, manifest)
    page = render(facts).encode()
    replace_bytes(file, file.parent, page)
    told = {
        "slices": stage.folder.uri,
        "bytes": len(page),
        "examples_shown": sum(map(len, facts["mosaic"].values())),
        "rejects_shown": sum(len(pictures) for _, _, pictures in facts["rejects"] or ()),
        "verified": facts["verified"].state,
    }
    return Summary("report", file.uri, False, told)


def render(facts: Mapping[str, Any]) -> str:
    """The page as HTML: the same facts, the same text."""
    loader = PackageLoader("etl")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= FILTERS
    return environment.get_template("report.html").render(facts)


def _check_target(root: Place, file: Place) -> None:
    if not file.parent.exists():
        raise UsageError(f"{file.parent}: no such folder; make it, or give another place with -o")
    if file.info().type.name == "Directory":
        raise UsageError(f"{file} is a folder; give the page a name of its own with -o")
    for stage in STAGE_FOLDERS:
        if f"{file.real_path}/".startswith(f"{(root / stage).real_path}/"):
            raise UsageError(f"{file} lies among the files of a stage; give a place outside of {root / stage} with -o")
