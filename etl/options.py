"""The options of the stages, once: the ``ringslice`` command, the mrjob scripts and the pipeline take them from here.

The same word is the same option everywhere.
"""

import argparse
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import click

from etl.config import parse_bytes, parse_size, parse_split
from etl.errors import DEBUG_VARIABLE
from etl.hdfs_settings import (
    BLOCK_SIZE_VARIABLE,
    DEFAULT_HEAP,
    DRIVER_VARIABLE,
    DRIVERS,
    HEAP_VARIABLE,
    REPLICATION_VARIABLE,
    USER_VARIABLE,
)


def positive(text: str) -> int:
    """A whole number of at least 1. Raises ValueError."""
    if not re.fullmatch(r"\d+", text) or int(text) < 1:
        raise ValueError(f"{text!r} is no whole number of at least 1")
    return int(text)


def fraction(text: str) -> float:
    """A number from 0 to 1. Raises ValueError."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise ValueError(f"{text!r} is no fraction from 0 to 1")
    return value


@dataclass(frozen=True)
class Option:
    """One option: ``parse`` turns its text into a value and raises ValueError; without ``parse`` it is a flag.

    With ``variable`` its value goes to that environment variable, for this process and all its children.
    """

    flag: str
    help: str
    parse: Callable[[str], Any] | None = str
    default: str | None = None
    choices: tuple[str, ...] = ()
    metavar: str | None = None
    variable: str | None = None

    @property
    def name(self) -> str:
        return self.flag.lstrip("-").replace("-", "_")


HADOOP = "hadoop"
RUNNERS = ("inline", "local", HADOOP)
DEFAULT_RUNNER = "local"

OVERWRITE = Option("--overwrite", "Replace what another configuration or input left there.", parse=None)
JSON = Option("--json", "Print the summary as JSON on standard output.", parse=None)

ENVIRONMENT_OPTIONS = (
    Option(
        "--hdfs-driver",
        "Client of hdfs:// places: native (no Java) or libhdfs (the site's own, in a JVM). Default: native.",
        choices=DRIVERS,
        variable=DRIVER_VARIABLE,
    ),
    Option("--hdfs-user", "User on HDFS. Default: who runs this.", metavar="NAME", variable=USER_VARIABLE),
    Option(
        "--hdfs-replication",
        "Replicas of what is written to HDFS. Default: the site's.",
        positive,
        metavar="N",
        variable=REPLICATION_VARIABLE,
    ),
    Option(
        "--hdfs-block-size",
        "Block size of what is written to HDFS. Default: the site's.",
        parse_bytes,
        metavar="SIZE",
        variable=BLOCK_SIZE_VARIABLE,
    ),
    Option(
        "--hdfs-heap",
        f"Heap of libhdfs' JVM. Default: {DEFAULT_HEAP}.",
        parse_bytes,
        metavar="SIZE",
        variable=HEAP_VARIABLE,
    ),
    Option("--debug", "Show tracebacks, Java's too.", parse=None, variable=DEBUG_VARIABLE),
)
HADOOP_OPTIONS = (
    Option("--queue", "With -r hadoop: the YARN queue. Default: the cluster's.", metavar="NAME"),
    Option(
        "--priority",
        "With -r hadoop: priority of the job within its queue.",
        choices=("VERY_HIGH", "HIGH", "NORMAL", "LOW", "VERY_LOW"),
    ),
    Option("--task-memory", "With -r hadoop: memory of a task's container.", parse_bytes, "1GiB", metavar="SIZE"),
    Option(
        "--restart",
        "With -r hadoop: end a job of this stage that still runs on the cluster, instead of joining it.",
        parse=None,
    ),
)
CLUSTER_PYTHON = Option(  # mrjob's own option, where a job is run as a script
    "--python-bin",
    "With -r hadoop: a Python of the nodes that has ringslice. Default: ours is packed and sent along.",
    metavar="PATH",
)

INGEST_OPTIONS = (
    Option("--pack-size", "Size of a pack, the unit that a mapper works on.", parse_bytes, "64MB", metavar="SIZE"),
    Option(
        "--split-folders",
        "The first level of folders names the split (train, validation or val, test), the second the class.",
        parse=None,
    ),
    Option(
        "--columns",
        "A CSV or Parquet table with a column 'key' (an image's path below SOURCE) and others, kept with each image.",
        metavar="TABLE",
    ),
    Option(
        "--max-removed",
        "The fraction of the images known already that may be missing in SOURCE or changed; more is another source.",
        fraction,
        "0.1",
        metavar="FRACTION",
    ),
)
NORMALIZE_OPTIONS = (
    Option(
        "--size",
        "Height and width in pixels: 224 or 224x320. Default: the source's own where it states one (IDX), else 224.",
        parse_size,
        metavar="N|HxW",
    ),
    Option(
        "--fit",
        "How an image of another shape comes to the size: crop (shorter side, then the centre) or exact (stretched).",
        default="crop",
        choices=("crop", "exact"),
    ),
    Option(
        "--color",
        "Colour of the images. Default: the source's own where it states one (IDX), else rgb.",
        choices=("rgb", "gray"),
    ),
    Option("--format", "How pixels are kept. Default: png for IDX sources, else jpeg.", choices=("jpeg", "png", "raw")),
    Option("--quality", "JPEG quality, 1 to 100.", positive, "95", metavar="N"),
    Option(
        "--max-rejects",
        "The fraction of images that may turn out unusable; with more, the stage ends with status 1.",
        fraction,
        "0.01",
        metavar="FRACTION",
    ),
)
SHARD_OPTIONS = (
    Option("--name", "Name of the slices: they go to ROOT/slices/NAME.", default="default"),
    Option(
        "--split",
        "Splits by fraction: 'train=0.8,validation=0.1,test=0.1', by number: 'train=rest,test=1000', or 'source' for"
        " the source's own. Default: the source's own where every image has one, else those fractions.",
        parse_split,
        metavar="SPLIT",
    ),
    Option(
        "--group-by",
        "Keep all images that share a value of this column (a patient, a video) in one split, by a seeded hash of the"
        " value: fractions then hold about, not exactly. Columns come from: ringslice ingest --columns.",
        metavar="COLUMN",
    ),
    Option(
        "--splits-from",
        "Keep every key in the split that it has in earlier slices, and deal only new ones: a manifest.json, a folder"
        " of slices, a name of slices of this ROOT, or 'newest'.",
        metavar="MANIFEST",
    ),
    Option(
        "--remove",
        "Leave out the keys in this text file, one on each line, now and in all slices made --splits-from these.",
        metavar="FILE",
    ),
    Option("--drop-duplicates", "Of images with the same content deal the first one only.", parse=None),
    Option(
        "--partition",
        "stratified: every class within one example on every slice; uniform: at random over all.",
        default="stratified",
        choices=("stratified", "uniform"),
    ),
    Option(
        "--workers",
        "Training processes the slices are meant for; the training split gets a multiple of it.",
        positive,
        "8",
        metavar="N",
    ),
    Option(
        "--groups",
        "Groups that the workers form: slices lie in folders by group and worker, and a run can train on one group.",
        positive,
        "1",
        metavar="N",
    ),
    Option(
        "--slices",
        "Slices of the training split, rounded up to a multiple of --workers. Default: by --slice-size.",
        positive,
        metavar="N",
    ),
    Option("--slice-size", "About how large a slice is, without --slices.", parse_bytes, "200MB", metavar="SIZE"),
    Option("--seed", "Seed of splits, slices and order.", int, "0", metavar="N"),
)
VERIFY_OPTIONS = (
    Option("--name", "Name of the slices, in ROOT/slices/NAME.", default="default"),
    Option("--every-stage", "Also read and check the bytes of packs and parts.", parse=None),
    Option(
        "--repair",
        "Make what is damaged or missing again, to the same bytes, from ROOT/normalized and raw; then check again.",
        parse=None,
    ),
    Option(
        "--to",
        "Where the verification is written, for who may not write to ROOT. Default: ROOT/verified/NAME.",
        metavar="PLACE",
    ),
)


class _Text(click.ParamType[str]):
    """An option's value: checked by its ``parse``, handed on as the text it was, for that is what a child is given."""

    name = "text"

    def __init__(self, parse: Callable[[str], Any]) -> None:
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            self._parse(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return str(value)


def click_options(options: Iterable[Option]) -> Callable[[Any], Any]:
    """A decorator that gives a click command these options; their values arrive as text (flags as bool)."""

    def decorate(command: Any) -> Any:
        for option in reversed(list(options)):
            command = _click_option(option)(command)
        return command

    return decorate


def _click_option(option: Option) -> Callable[[Any], Any]:
    to_environment: dict[str, Any] = {"expose_value": False, "callback": _set_variable} if option.variable else {}
    if option.parse is None:
        return click.option(option.flag, is_flag=True, help=option.help, **to_environment)
    if option.choices:
        kind: click.ParamType[Any] = click.Choice(option.choices)
    else:
        kind = _Text(option.parse)
    return click.option(
        option.flag,
        type=kind,
        default=option.default,
        show_default=option.default is not None,
        metavar=option.metavar,
        help=option.help,
        **to_environment,
    )


def _set_variable(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    del context
    set_variables({str(parameter.name): value})


def set_variables(values: Mapping[str, Any]) -> None:
    """Set the environment variables of `ENVIRONMENT_OPTIONS` whose options were given among ``values``, by name."""
    for option in ENVIRONMENT_OPTIONS:
        assert option.variable is not None
        if value := values.get(option.name):
            os.environ[option.variable] = "1" if value is True else str(value)


def add_arguments(parser: argparse.ArgumentParser, options: Iterable[Option]) -> None:
    """Give an argparse parser these options; their values arrive as text (flags as bool)."""
    for option in options:
        if option.parse is None:
            parser.add_argument(option.flag, action="store_true", help=option.help)
        else:
            parser.add_argument(
                option.flag,
                type=_checked(option),
                default=option.default,
                choices=option.choices or None,
                metavar=option.metavar if not option.choices else None,
                help=option.help + (f" (default: {option.default})" if option.default is not None else ""),
            )


def _checked(option: Option) -> Callable[[str], str]:
    def check(text: str) -> str:
        assert option.parse is not None
        try:
            option.parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        return text

    return check


def parse_values(options: Iterable[Option], values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by option name, each text turned into its value; options that were not given are None."""
    parsed = {}
    for option in options:
        value = values.get(option.name)
        parsed[option.name] = option.parse(value) if option.parse is not None and value is not None else value
    return parsed


def command_line(options: Iterable[Option], values: Mapping[str, Any]) -> list[str]:
    """The words that give a child process the same values."""
    words = []
    for option in options:
        value = values.get(option.name)
        if option.parse is None:
            words += [option.flag] if value else []
        elif value is not None:
            words += [f"{option.flag}={value}"]
    return words
