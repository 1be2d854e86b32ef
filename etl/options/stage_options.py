"""The options of the stages: the ``ringslice`` command and the mrjob scripts take them from here."""

import os
from typing import Any

import click

from etl.errors import DEBUG_VARIABLE
from etl.hadoop.site_config import USER_VARIABLE
from etl.images.config import COLORS, FORMATS, SUBSAMPLINGS
from etl.images.geometry import FITS
from etl.options.click_command import (
    BYTES,
    COLOR,
    COUNT,
    FRACTION,
    INTEGER,
    NUMBERS,
    SECONDS,
    SIZE,
    FiniteRange,
    IntegerRange,
    Option,
    ParsedText,
)
from etl.partition.config import parse_split
from etl.storage.hdfs_settings import (
    BLOCK_SIZE_VARIABLE,
    DEFAULT_HEAP,
    DRIVER_VARIABLE,
    DRIVERS,
    HEAP_VARIABLE,
    REPLICATION_VARIABLE,
)
from etl.values import parse_text

HADOOP = "hadoop"
RUNNERS = ("inline", "local", HADOOP)
DEFAULT_RUNNER = "local"
DEFAULT_PACK_SIZE = "64MB"


def _flag(name: str, text: str) -> Option:
    return click.option(name, is_flag=True, help=text)


def _value(name: str, kind: click.ParamType[Any] | str, text: str, **settings: Any) -> Option:
    """An option with a value: of a type, or a text, of which ``kind`` is the name in the help."""
    metavar = kind if isinstance(kind, str) else getattr(kind, "metavar", None)
    kind = ParsedText(parse_text) if isinstance(kind, str) else kind
    return click.option(name, type=kind, help=text, metavar=metavar, show_default="default" in settings, **settings)


def _variable(name: str, kind: click.ParamType[Any] | str | None, text: str, variable: str) -> Option:
    """An option whose value goes to an environment variable, for this process and all its children; None: a flag."""

    def set_variable(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        del context, parameter
        if value:
            os.environ[variable] = "1" if value is True else str(value)

    settings: dict[str, Any] = {"expose_value": False, "callback": set_variable}
    return _value(name, kind, text, **settings) if kind else click.option(name, is_flag=True, help=text, **settings)


OVERWRITE = _flag("--overwrite", "Replace results of other options or of other input.")
JSON = _flag("--json", "Print the summary as JSON to standard output.")
VERBOSE = _flag("--verbose", "Print all counts, and tables by class and slice.")
NAME = _value("--name", "TEXT", "Name of the slices, in ROOT/slices/NAME.", default="default")

ENVIRONMENT_OPTIONS = (
    _variable(
        "--hdfs-driver",
        click.Choice(DRIVERS),
        "Client of hdfs:// places: native (no Java) or libhdfs (the site's own, in a JVM). Default: native.",
        DRIVER_VARIABLE,
    ),
    _variable("--hdfs-user", "NAME", "User on HDFS. Default: the current user.", USER_VARIABLE),
    _variable(
        "--hdfs-replication",
        COUNT,
        "Replicas of files that are written to HDFS. Default: the site's.",
        REPLICATION_VARIABLE,
    ),
    _variable(
        "--hdfs-block-size",
        BYTES,
        "Block size of files that are written to HDFS. Default: the site's.",
        BLOCK_SIZE_VARIABLE,
    ),
    _variable("--hdfs-heap", BYTES, f"Heap of the JVM of libhdfs. Default: {DEFAULT_HEAP}.", HEAP_VARIABLE),
    _variable("--debug", None, "Show tracebacks, also those of Java.", DEBUG_VARIABLE),
)
HADOOP_OPTIONS = (
    _value("--queue", "NAME", "With -r hadoop: the YARN queue. Default: the cluster's."),
    _value(
        "--priority",
        click.Choice(("VERY_HIGH", "HIGH", "NORMAL", "LOW", "VERY_LOW")),
        "With -r hadoop: priority of the job within its queue.",
    ),
    _value(
        "--task-memory",
        BYTES,
        "With -r hadoop: memory of a task's container; the mappers of normalize get --max-memory in addition.",
        default="1GiB",
    ),
    _flag("--restart", "With -r hadoop: kill a running job of this stage, instead of joining it."),
)
RUNNER_OPTIONS = (  # of mrjob, if a job is run as a script
    click.option(
        "-r",
        "--runner",
        type=click.Choice(RUNNERS),
        default=DEFAULT_RUNNER,
        show_default=True,
        help="Where mrjob runs the tasks: in this process, in one process per core, or on a Hadoop cluster.",
    ),
    _value(
        "--python-bin",
        "PATH",
        "With -r hadoop: a Python of the nodes that has ringslice installed. Default: this one is packed and sent.",
    ),
)

INGEST_OPTIONS = (
    _value("--pack-size", BYTES, f"Approximate size of a pack, the input of one mapper. Default: {DEFAULT_PACK_SIZE}."),
    _flag(
        "--split-folders",
        "The first level of folders, of SOURCE or of its archives, is the split (train, val, test, and their usual"
        " other names), the second the class.",
    ),
    _value(
        "--label-column",
        "NAME",
        "The column of a list or of Parquet files, or the field of an archive's .json files, that is the label."
        " Default: label; of Parquet files without it, labels.",
    ),
    _value(
        "--image-column",
        "NAME",
        "The column of the images in Parquet files, or of the paths in a list. Default: the only one of a suitable"
        " type or name (path, file_name, ...).",
    ),
    _value(
        "--split-column",
        "NAME",
        "The column or field that is the split of each image (train, validation, test). Default: split, if it exists.",
    ),
    _value(
        "--key-column",
        "NAME",
        "The column of Parquet files or of a list that is the key of each image: unique, and the same every night."
        " Default: file and row number, or the path.",
    ),
    _value(
        "--classes",
        "FILE",
        "A text file with the name of a class on each line: labels are these names, or numbers of lines from 0. New"
        " classes may be added at its end later. Default: the labels of the source.",
    ),
    _flag(
        "--follow-links",
        "Follow symbolic links that lead out of SOURCE, if it is a folder of classes or a list. Default: refuse them.",
    ),
    _flag(
        "--in-place",
        "Copy nothing: use the tar or Parquet files of SOURCE as packs, and write only image lists. Do not move or"
        " change them.",
    ),
    _value("--packs-at-once", COUNT, "Number of packs that are written at the same time.", default=4),
    _value(
        "--columns",
        "TABLE",
        "A CSV or Parquet table with a column 'key' (the key of an image, e.g. its path in SOURCE); its other columns"
        " are stored with each image, and replace columns of the source of the same name.",
    ),
    _value(
        "--max-removed",
        FRACTION,
        "Maximum fraction of the packed images that may be missing from SOURCE or changed; with more, it is considered"
        " another source.",
        default=0.1,
    ),
)
NORMALIZE_OPTIONS = (
    _value(
        "--size",
        SIZE,
        "Height and width in pixels: 224 or 224x320. Default: those of the source if it is IDX, else 224.",
    ),
    _value(
        "--fit",
        click.Choice(FITS),
        "How an image is resized: crop (shorter side, then the center), exact (stretched), pad (longest side, then a"
        " border of --background), shorter or longest (that side only; images then differ in size).",
        default="crop",
    ),
    _flag("--only-shrink", "Do not enlarge images: smaller ones keep their size."),
    _value("--color", click.Choice(COLORS), "Color of the images. Default: that of IDX sources, else rgb."),
    _value(
        "--background",
        COLOR,
        "Color of padding and of transparent pixels: #RRGGBB, or red,green,blue.",
        default="#ffffff",
    ),
    _value("--format", click.Choice(FORMATS), "Format of the pixels. Default: png for IDX sources, else jpeg."),
    _value("--quality", IntegerRange(1, 100), "JPEG quality, 1 to 100.", default=95),
    _value("--subsampling", click.Choice(tuple(map(str, SUBSAMPLINGS))), "JPEG color: 4:2:0 or 4:4:4.", default="420"),
    _value(
        "--subtract",
        NUMBERS,
        "With float formats a pixel becomes (pixel - SUBTRACT) / DIVIDE_BY: one number, or one for each channel.",
        default="0",
    ),
    _value("--divide-by", NUMBERS, "See --subtract.", default="255"),
    _flag("--pass-through", "Keep a file unchanged if it has the size, color and format asked for, and no metadata."),
    _value(
        "--max-rejects",
        FRACTION,
        "Maximum fraction of unusable images; with more, the stage fails with status 1.",
        default=0.01,
    ),
    _value("--max-pixels", COUNT, "Maximum number of pixels, by the header.", default=100_000_000),
    _value("--max-bytes", BYTES, "Maximum size of a file.", default="256MB"),
    _value("--max-frames", COUNT, "Maximum number of frames; only the first frame is used.", default=10_000),
    _value("--max-aspect", FiniteRange(1), "Maximum aspect ratio (longer side / shorter side).", default=200),
    _value("--min-side", COUNT, "Minimum number of pixels of a side.", default=1),
    _value("--max-seconds", SECONDS, "Maximum processor time for an image.", default=10),
    _value(
        "--max-memory",
        BYTES,
        "Maximum memory to decode an image. Default: 8 bytes per pixel of --max-pixels, and --max-bytes; at least"
        " 800MB.",
    ),
)
RETRY_REJECTS = _flag(
    "--retry-rejects",
    "Normalize packs with rejects of a finished stage again, with the same options but looser limits (--max-pixels,"
    " --max-seconds, ...); good images are kept.",
)
SHARD_OPTIONS = (
    NAME,
    _value(
        "--split",
        ParsedText(parse_split, "SPLIT"),
        "Splits by fraction: 'train=0.8,validation=0.1,test=0.1', by number: 'train=rest,test=1000', or 'source' for"
        " those of the source. Default: those of the source if every image has one and --group-by is not given, else"
        " these fractions.",
    ),
    _value(
        "--group-by",
        "COLUMN",
        "Keep all images that have the same value of this column (a patient, a video) in one split, by a seeded hash of"
        " the value; fractions are then approximate. Columns come from a list, Parquet files, an archive, or: ringslice"
        " ingest --columns.",
    ),
    _value(
        "--splits-from",
        "MANIFEST",
        "Keep every image in the split that it has in earlier slices, by its content, group or key, and assign only new"
        " ones: a manifest.json, a folder of slices, a name of slices of this ROOT, or 'newest', the last ones made"
        " with this option, else the only ones.",
    ),
    _value(
        "--remove",
        "FILE",
        "Leave out the keys in this text file, one on each line, now and in all slices made --splits-from these.",
    ),
    _flag("--drop-duplicates", "Keep one image of each content."),
    _value(
        "--partition",
        click.Choice(("stratified", "uniform")),
        "stratified: the number of examples of a class differs by at most one between slices; uniform: at random.",
        default="stratified",
    ),
    _value(
        "--workers",
        COUNT,
        "Number of training processes; the number of training slices is a multiple of it.",
        default=8,
    ),
    _value(
        "--groups",
        COUNT,
        "Number of groups of workers: slices are in folders by group and worker, and a run can train on one group.",
        default=1,
    ),
    _value(
        "--slices", COUNT, "Number of training slices, rounded up to a multiple of --workers. Default: by --slice-size."
    ),
    _value("--slice-size", BYTES, "Approximate size of a slice, without --slices.", default="200MB"),
    _value("--seed", INTEGER, "Seed of splits, slices and order.", default=0),
)
VERIFY_OPTIONS = (
    NAME,
    _flag("--every-stage", "Also read and check the bytes of packs, parts and rejects."),
    _flag(
        "--repair",
        "Rebuild damaged or missing files, to the same bytes, from ROOT/normalized and raw; then check again.",
    ),
    _value("--to", "PLACE", "Output folder, if ROOT is read-only. Default: ROOT/verified/NAME."),
)
