"""The options of the stages: the ``ringslice`` command and the mrjob scripts take them from here.

An option of the same name is the same option in every command.
"""

import os
from typing import Any

import click

from etl.errors import DEBUG_VARIABLE
from etl.images.config import COLORS, FORMATS, SUBSAMPLINGS
from etl.images.geometry import FITS
from etl.options.click_command import (
    BYTES,
    COLOR,
    COUNT,
    COUNTS,
    FRACTION,
    NUMBERS,
    SECONDS,
    SIZE,
    FiniteRange,
    Option,
    Parsed,
)
from etl.partition.config import parse_split
from etl.storage.hdfs_settings import (
    BLOCK_SIZE_VARIABLE,
    DEFAULT_HEAP,
    DRIVER_VARIABLE,
    DRIVERS,
    HEAP_VARIABLE,
    REPLICATION_VARIABLE,
    USER_VARIABLE,
)

HADOOP = "hadoop"
RUNNERS = ("inline", "local", HADOOP)
DEFAULT_RUNNER = "local"
DEFAULT_PACK_SIZE = "64MB"


def _flag(name: str, text: str) -> Option:
    return click.option(name, is_flag=True, help=text)


def _value(name: str, text: str, metavar: str | None = None, **settings: Any) -> Option:
    return click.option(name, help=text, metavar=metavar, show_default="default" in settings, **settings)


def _variable(name: str, text: str, variable: str, **settings: Any) -> Option:
    """An option whose value goes to an environment variable, for this process and all its children."""

    def set_variable(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        del context, parameter
        if value:
            os.environ[variable] = "1" if value is True else str(value)

    return click.option(name, help=text, expose_value=False, callback=set_variable, **settings)


OVERWRITE = _flag("--overwrite", "Replace results of other options or of other input.")
JSON = _flag("--json", "Print the summary as JSON to standard output.")
VERBOSE = _flag("--verbose", "Print all counts, and tables by class and slice.")
NAME = _value("--name", "Name of the slices, in ROOT/slices/NAME.", default="default")

ENVIRONMENT_OPTIONS = (
    _variable(
        "--hdfs-driver",
        "Client of hdfs:// places: native (no Java) or libhdfs (the site's own, in a JVM). Default: native.",
        DRIVER_VARIABLE,
        type=click.Choice(DRIVERS),
    ),
    _variable("--hdfs-user", "User on HDFS. Default: the current user.", USER_VARIABLE, metavar="NAME"),
    _variable(
        "--hdfs-replication",
        "Replicas of files that are written to HDFS. Default: the site's.",
        REPLICATION_VARIABLE,
        type=COUNT,
        metavar="N",
    ),
    _variable(
        "--hdfs-block-size",
        "Block size of files that are written to HDFS. Default: the site's.",
        BLOCK_SIZE_VARIABLE,
        type=BYTES,
        metavar="SIZE",
    ),
    _variable(
        "--hdfs-heap",
        f"Heap of the JVM of libhdfs. Default: {DEFAULT_HEAP}.",
        HEAP_VARIABLE,
        type=BYTES,
        metavar="SIZE",
    ),
    _variable("--debug", "Show tracebacks, also those of Java.", DEBUG_VARIABLE, is_flag=True),
)
HADOOP_OPTIONS = (
    _value("--queue", "With -r hadoop: the YARN queue. Default: the cluster's.", "NAME"),
    _value(
        "--priority",
        "With -r hadoop: priority of the job within its queue.",
        type=click.Choice(("VERY_HIGH", "HIGH", "NORMAL", "LOW", "VERY_LOW")),
    ),
    _value(
        "--task-memory",
        "With -r hadoop: memory of a task's container; the mappers of normalize get --max-memory in addition.",
        "SIZE",
        type=BYTES,
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
        "With -r hadoop: a Python of the nodes that has ringslice installed. Default: this one is packed and sent.",
        "PATH",
    ),
)

INGEST_OPTIONS = (
    _value(
        "--pack-size",
        f"Approximate size of a pack, the input of one mapper. Default: {DEFAULT_PACK_SIZE}.",
        "SIZE",
        type=BYTES,
    ),
    _flag(
        "--split-folders",
        "The first level of folders, of SOURCE or of its archives, is the split (train, validation or val, test), the"
        " second the class.",
    ),
    _value(
        "--label-column",
        "The column of a list or of Parquet files, or the field of an archive's .json files, that is the label."
        " Default: label; of Parquet files without it, labels.",
        "NAME",
    ),
    _value(
        "--image-column",
        "The column of the images in Parquet files, or of the paths in a list. Default: the only one of a suitable"
        " type or name (path, file_name, ...).",
        "NAME",
    ),
    _value(
        "--split-column",
        "The column or field that is the split of each image (train, validation, test). Default: split, if it exists.",
        "NAME",
    ),
    _value(
        "--key-column",
        "The column of Parquet files or of a list that is the key of each image: unique, and the same every night."
        " Default: file and row number, or the path.",
        "NAME",
    ),
    _value(
        "--classes",
        "A text file with the name of a class on each line: labels are these names, or numbers of lines from 0. New"
        " classes may be added at its end later. Default: the labels of the source.",
        "FILE",
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
    _value("--packs-at-once", "Number of packs that are written at the same time.", "N", type=COUNT, default=4),
    _value(
        "--columns",
        "A CSV or Parquet table with a column 'key' (the key of an image, e.g. its path in SOURCE); its other columns"
        " are stored with each image, and replace columns of the source of the same name.",
        "TABLE",
    ),
    _value(
        "--max-removed",
        "Maximum fraction of the packed images that may be missing from SOURCE or changed; with more, it is considered"
        " another source.",
        "FRACTION",
        type=FRACTION,
        default=0.1,
    ),
)
NORMALIZE_OPTIONS = (
    _value(
        "--size",
        "Height and width in pixels: 224 or 224x320. Default: those of the source if it is IDX, else 224.",
        "N|HxW",
        type=SIZE,
    ),
    _value(
        "--fit",
        "How an image is resized: crop (shorter side, then the center), exact (stretched), pad (longest side, then a"
        " border of --background), shorter or longest (that side only; images then differ in size).",
        type=click.Choice(FITS),
        default="crop",
    ),
    _flag("--only-shrink", "Do not enlarge images: smaller ones keep their size."),
    _value("--color", "Color of the images. Default: that of IDX sources, else rgb.", type=click.Choice(COLORS)),
    _value(
        "--background",
        "Color of padding and of transparent pixels: #RRGGBB, or red,green,blue.",
        "COLOR",
        type=COLOR,
        default="#ffffff",
    ),
    _value("--format", "Format of the pixels. Default: png for IDX sources, else jpeg.", type=click.Choice(FORMATS)),
    _value("--quality", "JPEG quality, 1 to 100.", "N", type=click.IntRange(1, 100), default=95),
    _value(
        "--subsampling",
        "JPEG color: 4:2:0 or 4:4:4.",
        type=click.Choice(tuple(map(str, SUBSAMPLINGS))),
        default="420",
    ),
    _value(
        "--subtract",
        "With float formats a pixel becomes (pixel - SUBTRACT) / DIVIDE_BY: one number, or one for each channel.",
        "X[,Y,Z]",
        type=NUMBERS,
        default="0",
    ),
    _value("--divide-by", "See --subtract.", "X[,Y,Z]", type=NUMBERS, default="255"),
    _flag(
        "--pass-through",
        "Keep a file unchanged if it has the size, color and format asked for, and no metadata.",
    ),
    _value(
        "--max-rejects",
        "Maximum fraction of unusable images; with more, the stage fails with status 1.",
        "FRACTION",
        type=FRACTION,
        default=0.01,
    ),
    _value("--max-pixels", "Maximum number of pixels, by the header.", "N", type=COUNT, default=100_000_000),
    _value("--max-bytes", "Maximum size of a file.", "SIZE", type=BYTES, default="256MB"),
    _value("--max-frames", "Maximum number of frames; only the first frame is used.", "N", type=COUNT, default=10_000),
    _value("--max-aspect", "Maximum aspect ratio (longer side / shorter side).", "X", type=FiniteRange(1), default=200),
    _value("--min-side", "Minimum number of pixels of a side.", "N", type=COUNT, default=1),
    _value("--max-seconds", "Maximum processor time for an image.", "N", type=SECONDS, default=10),
    _value(
        "--max-memory",
        "Maximum memory to decode an image. Default: 8 bytes per pixel of --max-pixels, and --max-bytes; at least"
        " 800MB.",
        "SIZE",
        type=BYTES,
    ),
)
RETRY_REJECTS = _flag(
    "--retry-rejects",
    "Retry only the rejects of a finished stage, with the same options but looser limits (--max-pixels, --max-seconds,"
    " ...); good images are kept.",
)
SHARD_OPTIONS = (
    NAME,
    _value(
        "--split",
        "Splits by fraction: 'train=0.8,validation=0.1,test=0.1', by number: 'train=rest,test=1000', or 'source' for"
        " those of the source. Default: those of the source if every image has one, else these fractions.",
        "SPLIT",
        type=Parsed(parse_split),
    ),
    _value(
        "--group-by",
        "Keep all images that have the same value of this column (a patient, a video) in one split, by a seeded hash of"
        " the value; fractions are then approximate. Columns come from a list, Parquet files, or: ringslice ingest"
        " --columns.",
        "COLUMN",
    ),
    _value(
        "--splits-from",
        "Keep every image in the split that it has in earlier slices, by its content, group or key, and assign only new"
        " ones: a manifest.json, a folder of slices, a name of slices of this ROOT, or 'newest', the last ones made"
        " with this option.",
        "MANIFEST",
    ),
    _value(
        "--remove",
        "Leave out the keys in this text file, one on each line, now and in all slices made --splits-from these.",
        "FILE",
    ),
    _flag("--drop-duplicates", "Keep one image of each content."),
    _value(
        "--partition",
        "stratified: the number of examples of a class differs by at most one between slices; uniform: at random.",
        type=click.Choice(("stratified", "uniform")),
        default="stratified",
    ),
    _value(
        "--workers",
        "Number of training processes; the number of training slices is a multiple of it.",
        "N",
        type=COUNT,
        default=8,
    ),
    _value(
        "--groups",
        "Number of groups of workers: slices are in folders by group and worker, and a run can train on one group.",
        "N",
        type=COUNT,
        default=1,
    ),
    _value(
        "--slices",
        "Number of training slices, rounded up to a multiple of --workers. Default: by --slice-size.",
        "N",
        type=COUNT,
    ),
    _value("--slice-size", "Approximate size of a slice, without --slices.", "SIZE", type=BYTES, default="200MB"),
    _value("--seed", "Seed of splits, slices and order.", "N", type=int, default=0),
)
VERIFY_OPTIONS = (
    NAME,
    _flag("--every-stage", "Also read and check the bytes of packs, parts and rejects."),
    _flag(
        "--repair",
        "Rebuild damaged or missing files, to the same bytes, from ROOT/normalized and raw; then check again.",
    ),
    _value("--to", "Output folder, if ROOT is read-only. Default: ROOT/verified/NAME.", "PLACE"),
)
READ_BENCH_OPTIONS = (
    NAME,
    _value(
        "--slices-at-once",
        "Number of slices that are read in parallel; several numbers separated by commas are measured one by one.",
        "N,…",
        type=COUNTS,
        default="1,2,4,8",
    ),
    _value("--seconds", "Duration of each measurement.", "N", type=SECONDS, default=3),
)
