"""The options of how a rank reads, for all that read slices: they make a `ReaderOptions`. Imports no TensorFlow."""

import functools
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from etl.errors import UsageError
from etl.options.click_command import BYTES
from etl.storage.filesystem import LocalFilesystem
from etl.storage.place import open_place
from train.monitor.launcher import local_rank
from train.reader.cache import SliceCache
from train.reader.config import SKIP, STOP, ReaderOptions

# How each rank reads: names are the fields of `ReaderOptions`. They decide nothing of what is learned but the order
# within an epoch, which goes by the memory and the slices at once, and what --on-damage leaves out.
_READING = (
    click.option(
        "--slices-at-once",
        "lanes",
        envvar="RINGSLICE_SLICES_AT_ONCE",
        type=int,
        default=ReaderOptions.lanes,
        show_default=True,
        help="Slices that a rank reads side by side, at most; fewer if it has fewer.",
    ),
    click.option(
        "--reader-memory",
        "budget_bytes",
        envvar="RINGSLICE_READER_MEMORY",
        type=BYTES,
        default="256MB",
        show_default=True,
        metavar="SIZE",
        help="Memory of a rank for what is read ahead.",
    ),
    click.option(
        "--check/--no-check",
        default=ReaderOptions.check,
        show_default=True,
        help="Compare the CRC32C of all that is read.",
    ),
    click.option(
        "--on-damage",
        type=click.Choice([STOP, SKIP]),
        default=ReaderOptions.on_damage,
        show_default=True,
        help="At a damaged record: stop and name it, or leave it out and count it.",
    ),
    click.option(
        "--skip-limit",
        type=int,
        default=ReaderOptions.skip_limit,
        show_default=True,
        help="Damaged records that a rank may leave out in an epoch.",
    ),
    click.option(
        "--read-timeout",
        "silence_s",
        envvar="RINGSLICE_READ_TIMEOUT",
        type=float,
        default=ReaderOptions.silence_s,
        show_default=True,
        help="Seconds without a byte from the storage after which a rank gives up; of several ranks, --stall-timeout"
        " comes first if it is less.",
    ),
)

_CACHE = (
    click.option(
        "--cache",
        metavar="FOLDER",
        help="Keep slices in this folder of a local disk, so that they cross the network once. All ranks of a host, and"
        " other runs too, may share it.",
    ),
    click.option(
        "--cache-size",
        type=BYTES,
        default="100GB",
        show_default=True,
        metavar="SIZE",
        help="Maximum size of --cache.",
    ),
)


def is_given(name: str) -> bool:
    """True if the option of this parameter was given on the command line."""
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


def refuse_without_effect(name: str, has_effect: bool, needed: str) -> None:
    """Raise UsageError if the option of this parameter was given, and has no effect without what is ``needed``."""
    if not has_effect and is_given(name):
        raise UsageError(f"--{name.replace('_', '-')} has no effect without {needed}. Leave it out")


def _open_cache(folder: str | None, limit_bytes: int) -> SliceCache | None:
    """The cache that was asked for; of the ranks of a host the first reports what goes wrong with it.

    Raises UsageError if the folder is not local.
    """
    if folder is None:
        return None
    place = open_place(folder) if folder else None
    if place is None or place.filesystem.scheme != LocalFilesystem.scheme:
        raise UsageError(f"--cache {folder!r} is not a folder of a local disk. Give one, or leave it out")
    return SliceCache(Path(place.path), limit_bytes, quiet=local_rank() != 0)


def reading_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command these options; ``function`` is called with the `ReaderOptions` they make as ``reading``."""

    @functools.wraps(function)
    def run(*, cache: str | None, cache_size: int, **values: Any) -> None:
        refuse_without_effect("cache_size", cache is not None, "--cache")
        refuse_without_effect("skip_limit", values["on_damage"] == SKIP, f"--on-damage {SKIP}")
        how = {each.name: values.pop(each.name) for each in fields(ReaderOptions) if each.name in values}
        with _open_cache(cache, cache_size) or nullcontext() as opened:
            function(reading=ReaderOptions(**how, cache=opened), **values)

    decorated: Any = run
    for option in reversed((*_READING, *_CACHE)):
        decorated = option(decorated)
    return decorated
