"""Fills the template of a page, and checks where the page may go."""

from collections.abc import Iterable, Mapping
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from etl.errors import UsageError
from etl.report.text import FILTERS
from etl.stages.names import STAGE_FOLDERS
from etl.storage.atomic import replace_bytes
from etl.storage.place import Place


def publish(package: str, template: str, facts: Mapping[str, Any], file: Place) -> int:
    """Write the page to ``file``, in place of one that exists; the same facts give the same bytes. Returns its size.

    ``template`` is in ``package`` and may extend or import those of this package.
    """
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader("etl.report")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= FILTERS
    page = environment.get_template(template).render(facts).encode()
    replace_bytes(file, file.parent, page)
    return len(page)


def folders_of(root: Place) -> list[Place]:
    """The folders of a root that have files of stages and of runs, among which no page goes."""
    return [root / name for name in (*STAGE_FOLDERS, "models")]


def check_target(file: Place, folders: Iterable[Place]) -> None:
    """Raise UsageError if a page cannot be written to ``file``, or it lies below one of the ``folders``."""
    if file.parent.info().type.name != "Directory":
        raise UsageError(f"{file.parent}: no such folder; make it, or give another place with -o")
    if file.info().type.name == "Directory":
        raise UsageError(f"{file} is a folder; give the page a name of its own with -o")
    for folder in folders:
        if f"{file.real_path}/".startswith(f"{folder.real_path}/"):
            raise UsageError(f"{file} lies among the files of a dataset; give a place outside of {folder} with -o")
