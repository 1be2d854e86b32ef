"""The options of the stages, once: the ``ringslice`` command, the mrjob scripts and the pipeline take them from here.

The same word is the same option everywhere.
"""

from etl.errors import DEBUG_VARIABLE
from etl.images.config import COLORS, FORMATS, SUBSAMPLINGS
from etl.images.geometry import FITS
from etl.options.option import Option
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
from etl.values import (
    duration,
    fraction,
    parse_bytes,
    parse_color,
    parse_numbers,
    parse_size,
    positive,
    positives,
    ratio,
    whole,
)

HADOOP = "hadoop"
RUNNERS = ("inline", "local", HADOOP)
DEFAULT_RUNNER = "local"
DEFAULT_PACK_SIZE = "64MB"

OVERWRITE = Option("--overwrite", "Replace what another configuration or input left there.", parse=None)
JSON = Option("--json", "Print the summary as JSON on standard output.", parse=None)
VERBOSE = Option("--verbose", "Print every count, and tables by class and by slice.", parse=None)

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
    Option(
        "--task-memory",
        "With -r hadoop: memory of a task's container; normalize's has --max-memory besides.",
        parse_bytes,
        "1GiB",
        metavar="SIZE",
    ),
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
    Option(
        "--pack-size",
        f"About how large a pack is, the unit that a mapper works on. Default: {DEFAULT_PACK_SIZE}.",
        parse_bytes,
        metavar="SIZE",
    ),
    Option(
        "--split-folders",
        "The first level of folders, of SOURCE or of its archives, names the split (train, validation or val, test),"
        " the second the class.",
        parse=None,
    ),
    Option(
        "--label-column",
        "Where the label stands: a column of a list or of Parquet files, a field of an archive's .json files."
        " Default: label, and in Parquet files without it labels.",
        metavar="NAME",
    ),
    Option(
        "--image-column",
        "The column that holds a Parquet file's images, or a list's paths. Default: the only one that can, by its type"
        " or by its name (path, file_name, ...).",
        metavar="NAME",
    ),
    Option(
        "--split-column",
        "The column or field that names the split of each image (train, validation, test). Default: split, where there"
        " is one.",
        metavar="NAME",
    ),
    Option(
        "--key-column",
        "The column of Parquet files or of a list whose values are the keys of the images: each once, the same every"
        " night. Default: file and row number, or the path.",
        metavar="NAME",
    ),
    Option(
        "--classes",
        "A text file with the name of a class on each line: a label that is a number counts them from 0, one that is a"
        " name is one of them. It may grow at its end from night to night. Default: the labels that the source has.",
        metavar="FILE",
    ),
    Option(
        "--follow-links",
        "Take what symbolic links in SOURCE lead to outside of it, where it is a folder of classes or a list. Without"
        " it they are refused.",
        parse=None,
    ),
    Option(
        "--in-place",
        "Copy nothing: tar or Parquet files stay where they lie, each a pack, and only lists are made of them. They"
        " must stay there, as they are.",
        parse=None,
    ),
    Option("--packs-at-once", "How many packs are written at the same time.", positive, "4", metavar="N"),
    Option(
        "--columns",
        "A CSV or Parquet table with a column 'key' (what an image is called here, such as its path below SOURCE) and"
        " others, kept with each image, in place of the source's own of the same name.",
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
        "How an image comes to the size: crop (shorter side, then the centre), exact (stretched), pad (longest side,"
        " then the background around it), shorter or longest (that side alone; images then differ in size).",
        default="crop",
        choices=FITS,
    ),
    Option("--only-shrink", "Enlarge no image: smaller ones keep their size.", parse=None),
    Option(
        "--color",
        "Colour of the images. Default: the source's own where it states one (IDX), else rgb.",
        choices=COLORS,
    ),
    Option(
        "--background",
        "What transparency and padding show: #RRGGBB, or red,green,blue.",
        parse_color,
        "#ffffff",
        metavar="COLOR",
    ),
    Option("--format", "How pixels are kept. Default: png for IDX sources, else jpeg.", choices=FORMATS),
    Option("--quality", "JPEG quality, 1 to 100.", positive, "95", metavar="N"),
    Option("--subsampling", "JPEG colour: 4:2:0 or 4:4:4.", default="420", choices=tuple(map(str, SUBSAMPLINGS))),
    Option(
        "--subtract",
        "With float formats a pixel becomes (pixel - SUBTRACT) / DIVIDE_BY: one number, or one for each channel.",
        parse_numbers,
        "0",
        metavar="X[,Y,Z]",
    ),
    Option("--divide-by", "See --subtract.", parse_numbers, "255", metavar="X[,Y,Z]"),
    Option(
        "--pass-through",
        "Keep a file byte for byte where it fits as it is, in size, colour and format, and has no metadata.",
        parse=None,
    ),
    Option(
        "--max-rejects",
        "The fraction of images that may turn out unusable; with more, the stage ends with status 1.",
        fraction,
        "0.01",
        metavar="FRACTION",
    ),
    Option("--max-pixels", "Reject images with more, by their header.", positive, "100000000", metavar="N"),
    Option("--max-bytes", "Reject larger files, by their size.", parse_bytes, "256MB", metavar="SIZE"),
    Option("--max-frames", "Reject animations of more; the first is taken of others.", positive, "10000", metavar="N"),
    Option("--max-aspect", "Reject images whose longer side is more times the shorter.", ratio, "200", metavar="X"),
    Option("--min-side", "Reject images with a side of fewer pixels.", positive, "1", metavar="N"),
    Option("--max-seconds", "Reject images that take more processor time.", duration, "10", metavar="N"),
    Option(
        "--max-memory",
        "Reject images that take more memory to decode. Default: 8 bytes for each of --max-pixels, and --max-bytes; at"
        " least 800MB.",
        parse_bytes,
        metavar="SIZE",
    ),
)
RETRY_REJECTS = Option(
    "--retry-rejects",
    "Of what is finished try the rejects alone once more, as all images were normalised but for looser limits"
    " (--max-pixels, --max-seconds, ...); images that are good stay as they are.",
    parse=None,
)
RECORDED_OPTIONS = Option(
    "--recorded-options",
    "For ringslice erase: rebuild what is there, with the options that it was made with.",
    parse=None,
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
        " value: fractions then hold about, not exactly. Columns come from a list, Parquet files, or: ringslice ingest"
        " --columns.",
        metavar="COLUMN",
    ),
    Option(
        "--splits-from",
        "Keep every image in the split that it has in earlier slices, by its content, group or key, and deal only new"
        " ones: a manifest.json, a folder of slices, a name of slices of this ROOT, or 'newest', the last of those made"
        " with this option.",
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
    Option("--seed", "Seed of splits, slices and order.", whole, "0", metavar="N"),
)
VERIFY_OPTIONS = (
    Option("--name", "Name of the slices, in ROOT/slices/NAME.", default="default"),
    Option("--every-stage", "Also read and check the bytes of packs, parts and rejects.", parse=None),
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
READ_BENCH_OPTIONS = (
    Option("--name", "Name of the slices, in ROOT/slices/NAME.", default="default"),
    Option(
        "--slices-at-once",
        "How many slices are read side by side; several numbers with commas, each is measured.",
        positives,
        "1,2,4,8",
        metavar="N,…",
    ),
    Option("--seconds", "How long each measurement takes.", duration, "3", metavar="N"),
)
