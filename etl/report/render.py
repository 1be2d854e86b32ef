"""Fills the template of a page, and checks where the page may go."""

from collections.abc import Iterable, Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from etl.errors import UsageError
from etl.report.text import FILTERS
from etl.stages.names import STAGE_FOLDERS
from etl.storage.atomic import replace_bytes
from etl.storage.place import Place


def render(template: str, facts: Mapping[str, Any]) -> str:
    """The page as HTML: the same facts, the same text."""
    environment = Environment(
        loader=PackageLoader("etl.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= FILTERS
    return environment.get_template(template).render(facts)


def publish(template: str, facts: Mapping[str, Any], file: Place) -> int:
    """Write the page to ``file``; one that is there is replaced. Returns its bytes."""
    page = render(template, facts).encode()
    replace_bytes(file, file.parent, page)
    return len(page)


def folders_of(root: Place) -> list[Place]:
    """The folders of a root that have files of stages and of runs, among which no page goes."""
    return [root / name for name in (*STAGE_FOLDERS, "models")]


def folders_around(run: Place) -> list[Place]:
    """Those of the root of a run, or the run's folder if it lies elsewhere."""
    return folders_of(run.parent.parent) if run.parent.name == "runs" else [run]


def check_target(file: Place, folders: Iterable[Place]) -> None:
    """Raise UsageError if a page cannot be written to ``file``, or it lies below one of the ``folders``."""
    if file.parent.info().type.name != "Directory":
        raise UsageError(f"{file.parent}: no such folder; make it, or give another place with -o")
    if file.info().type.name == "Directory":
        raise UsageError(f"{file} is a folder; give the page a name of its own with -o")
    for folder in folders:
        if f"{file.real_path}/".startswith(f"{folder.real_path}/"):
            raise UsageError(f"{file} lies among the files of a dataset; give a place outside of {folder} with -o")
