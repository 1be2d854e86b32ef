#!/usr/bin/env python3
"""How fast slices are read: ringslice and its peers, in turns, each sample in a process of its own.

    python benchmarks/reader.py --workload serialized
    make tensorflow-io
    python benchmarks/reader.py --hdfs hdfs://127.0.0.1:8020/tmp/reader

Three workloads of 8 slices, each read completely, from the page cache, after a first pass that is not counted (over all
slices if ways are close to each other, otherwise over one):

- serialized: batches of 256 serialized examples of 30 to 50 KB (JPEGs of 256 pixels), from HDFS and locally.
- small: the same of Fashion-MNIST, 1 KB each, locally, five epochs in a row.
- decoded: batches of 64 pictures of 224 pixels, locally, the process on one core: examples/s is images/s per core.
  The peer resizes; ringslice takes the centre as for evaluation, or crops at random, flips and resizes as for training.

TensorFlow's own readers run without an order; ringslice has another one each epoch. All except pyarrow alone check the
CRC of every byte. Processor time is that of the process, including a JVM in it, without the daemons of HDFS.
"""

import dataclasses
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import click

from etl.hadoop.site_config import class_path, java_home, libhdfs_folder
from etl.slices.manifest import Manifest, read_manifest
from etl.stages.layout import slices_stage
from etl.storage.hdfs_settings import DRIVER_VARIABLE, LIBHDFS, NATIVE
from etl.storage.place import open_place
from etl.values import parse_bytes
from lib import reader_data
from lib.command import COUNT, SIZE, benchmark, leave_out
from lib.failure import Failure
from lib.hdfs import check_hdfs
from lib.peers import FASHION, TENSORFLOW_IO, check_fashion
from lib.processes import call, describe_machine
from lib.results import Result, format_figure, make_table, print_results, print_table
from lib.ways.reader_job import Job
from train.toolchain.build_records_op import installed_library

VERSIONS = ("tensorflow-cpu", "pyarrow", "hdfs-native", "crc32c", "numpy")
SERIALIZED, SMALL_RECORDS, DECODED = WORKLOADS = ("serialized", "small", "decoded")
SHORT = {"size": "160MB", "pictures": "24MB", "repeats": 1}
LARGE, SMALL, PICTURES = "photographs", "fashion", "pictures"
SMALL_EPOCHS = 5
SIDE = 224
BUFFER = {"buffer_bytes": 8 << 20}
ONE, TWO, FOUR, EIGHT = ({"at_once": number} for number in (1, 2, 4, 8))


class Figures(NamedTuple):
    """Of one timed pass: wall time for the first two, processor time for the last."""

    mb_per_s: float
    examples_per_s: float
    cpu_s_per_gb: float


Names = tuple[str, str, str]  # workload, way, variant
Samples = dict[Names, list[Figures]]


@dataclass(frozen=True)
class Way:
    """One row of a workload: the function of `Job`, what it reads, and its variants; ``settings`` are for its job."""

    workload: str
    name: str
    function: str
    dataset: str
    driver: str | None = None  # of HDFS; without one it reads local files
    variants: Sequence[Mapping[str, Any]] = ({},)
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def needs_tfio(self) -> bool:
        return self.function == "lib.ways.tf_peers:tensorflow_io"


WARM = {"warm_up": 8}
PLAIN = (ONE | BUFFER, EIGHT | BUFFER)
EPOCHS = {"passes": SMALL_EPOCHS}
ONE_CORE = {"side": SIDE, "core": 0, "batch": 64}

WAYS = (
    Way(SERIALIZED, "pyarrow, libhdfs", "lib.ways.pyarrow_reader:raw", LARGE, LIBHDFS, (ONE, EIGHT), WARM),
    Way(SERIALIZED, "pyarrow, native", "lib.ways.pyarrow_reader:raw", LARGE, NATIVE, (ONE, EIGHT), WARM),
    Way(SERIALIZED, "ringslice, libhdfs", "lib.ways.our_reader:serialized", LARGE, LIBHDFS, (TWO, FOUR, EIGHT), WARM),
    Way(SERIALIZED, "ringslice, native", "lib.ways.our_reader:serialized", LARGE, NATIVE, (TWO, FOUR, EIGHT), WARM),
    Way(SERIALIZED, "ringslice, local", "lib.ways.our_reader:serialized", LARGE, None, (TWO, FOUR, EIGHT), WARM),
    Way(SERIALIZED, "tensorflow-io", "lib.ways.tf_peers:tensorflow_io", LARGE, LIBHDFS, (ONE, EIGHT, *PLAIN), WARM),
    Way(SERIALIZED, "TFRecordDataset", "lib.ways.tf_peers:tfrecords", LARGE, None, PLAIN, WARM),
    Way(SMALL_RECORDS, "ringslice", "lib.ways.our_reader:serialized", SMALL, None, (FOUR,), EPOCHS),
    Way(SMALL_RECORDS, "TFRecordDataset", "lib.ways.tf_peers:tfrecords", SMALL, None, PLAIN, EPOCHS),
    Way(DECODED, "ringslice, centre", "lib.ways.our_reader:decoded", PICTURES, None, (FOUR,), ONE_CORE),
    Way(DECODED, "ringslice, crop, flip", "lib.ways.our_reader:augmented", PICTURES, None, (FOUR,), ONE_CORE),
    Way(DECODED, "TFRecordDataset", "lib.ways.tf_peers:recipe", PICTURES, None, PLAIN[1:], ONE_CORE),
)
COMPARED = (  # workload, way, its peer
    (SERIALIZED, "ringslice, libhdfs", "pyarrow, libhdfs"),
    (SERIALIZED, "ringslice, native", "pyarrow, native"),
    (SERIALIZED, "ringslice, libhdfs", "tensorflow-io"),
    (SERIALIZED, "ringslice, local", "TFRecordDataset"),
    (SMALL_RECORDS, "ringslice", "TFRecordDataset"),
    (DECODED, "ringslice, centre", "TFRecordDataset"),
    (DECODED, "ringslice, crop, flip", "TFRecordDataset"),
)


@dataclass(frozen=True)
class Data:
    """The roots of one dataset: the local one, and that on HDFS if its slices are there, too."""

    local: Path
    hdfs: str | None = None


@dataclass(frozen=True)
class Options:
    """The values of the command line."""

    folder: Path | None
    hdfs: str | None
    fashion: Path
    size: str
    pictures: str
    repeats: int
    workloads: Sequence[str]
    names: Sequence[str]


def take_samples(way: Way, data: Data) -> Iterator[tuple[Names, Figures]]:
    """One sample of each variant of the way, all from one process."""
    manifest = read_manifest(slices_stage(open_place(str(data.local)), reader_data.NAME))
    split = Manifest.from_json(manifest).splits["train"]
    folder = f"{data.hdfs if way.driver else data.local}/slices/{reader_data.NAME}"
    files = [f"{folder}/{each.name}.tfrecord" for each in split]
    records, size_bytes = sum(each.records for each in split), sum(each.size_bytes for each in split)
    job = Job(way.function, folder, files, records, variants=[dict(each) for each in way.variants], **way.settings)
    for found in _run(way, job):
        examples, wall_s = found["examples"], found["wall_s"]
        if not examples:
            reason = "its slices have fewer examples than a batch"
            raise Failure("workload", way.workload, reason, "Give a larger --size or --pictures")
        size = examples * size_bytes / records
        name = " ".join(f"{name}={value}" for name, value in found["variant"].items())
        figures = Figures(size / wall_s / 1e6, examples / wall_s, found["cpu_s"] / size * 1e9)
        yield (way.workload, way.name, name), figures


def _run(way: Way, job: Job) -> list[dict[str, Any]]:
    variables = {"TF_CPP_MIN_LOG_LEVEL": "2"} | ({DRIVER_VARIABLE: way.driver} if way.driver else {})
    if way.needs_tfio:
        variables |= _variables_of_tfio()
    python = TENSORFLOW_IO.python if way.needs_tfio else None
    found: list[dict[str, Any]] = call(
        "lib.ways.reader_job:run", dataclasses.asdict(job), python=python, variables=variables
    )
    return found


def _variables_of_tfio() -> dict[str, str]:
    """What its HDFS client needs: the jars, and both libraries on the path of the linker."""
    libraries = f"{libhdfs_folder()}:{java_home()}/lib/server"
    return {"CLASSPATH": class_path(), "JAVA_HOME": str(java_home()), "LD_LIBRARY_PATH": libraries}


def make_data(folder: Path, wanted: Options, chosen: Sequence[Way]) -> dict[str, Data]:
    """Make the datasets of the chosen ways if they do not exist, and put the large slices on HDFS."""
    datasets = {way.dataset for way in chosen}
    large, small = folder / f"{LARGE}-{wanted.size}", folder / SMALL
    decoded = folder / f"{PICTURES}-{wanted.pictures}"
    hdfs = f"{wanted.hdfs}/{large.name}" if wanted.hdfs else None
    if LARGE in datasets:
        reader_data.make_photographs(large, parse_bytes(wanted.size), slices=8)
        if hdfs:
            reader_data.put(large, hdfs)
    if PICTURES in datasets:
        reader_data.make_photographs(decoded, parse_bytes(wanted.pictures), slices=8)
    if SMALL in datasets:
        reader_data.make_small_records(small, wanted.fashion)
    return {LARGE: Data(large, hdfs), SMALL: Data(small), PICTURES: Data(decoded)}


def choose_ways(options: Options) -> list[Way]:
    """The ways that the options select and that can run. Raises Failure if something that they need is missing."""
    chosen = [
        way
        for way in WAYS
        if (options.hdfs or not way.driver)
        and (not options.workloads or way.workload in options.workloads)
        and (not options.names or any(name in way.name for name in options.names))
    ]
    if options.hdfs:
        check_hdfs("--hdfs", options.hdfs)
    try:
        if any(way.needs_tfio for way in chosen):
            versions = TENSORFLOW_IO.versions()
            click.echo("peer: " + ", ".join(f"{name} {version}" for name, version in versions.items()))
    except Failure as missing:
        leave_out(missing)
        chosen = [way for way in chosen if not way.needs_tfio]
    try:
        if any(way.dataset == SMALL for way in chosen):
            check_fashion("--fashion", options.fashion)
    except Failure as missing:
        leave_out(missing)
        chosen = [way for way in chosen if way.dataset != SMALL]
    return chosen


def print_medians(samples: Samples) -> None:
    """Print the median figures of each variant, and the MB/s of each of its samples."""
    table = make_table("workload: way", ("variant", *Figures._fields, "MB/s of each"))
    for (workload, way, variant), own in samples.items():
        medians = (format_figure(statistics.median(figures)) for figures in zip(*own, strict=True))
        table.add_row(f"{workload}: {way}", variant, *medians, " ".join(f"{each.mb_per_s:.0f}" for each in own))
    print_table(table)


def compare_best(samples: Samples) -> list[Result]:
    """The examples/s of each way of `COMPARED` beside its peer: of both the best variant that was measured."""
    best: dict[tuple[str, str], float] = {}
    for (workload, way, _), own in samples.items():
        rate = statistics.median(each.examples_per_s for each in own)
        best[workload, way] = max(rate, best.get((workload, way), 0.0))
    pairs = [(each, best.get(each[:2]), best.get((each[0], each[2]))) for each in COMPARED]
    return [
        Result(f"reader, {workload}: {way}", "examples/s", ours, peer, theirs, ours / theirs)
        for (workload, way, peer), ours, theirs in pairs
        if ours and theirs
    ]


@benchmark(__file__, __doc__, SHORT)
@click.option("--folder", type=Path, help="Keep the datasets there; default: a temporary folder.")
@click.option("--hdfs", help="A folder on the cluster, as a URI; without it only local files are measured.")
@click.option("--fashion", type=Path, default=FASHION, show_default=True, help="The files of Fashion-MNIST, for small.")
@click.option(
    "--size", type=SIZE, default="1GB", show_default=True, help="Size of the slices with serialized examples."
)
@click.option("--pictures", type=SIZE, default="80MB", show_default=True, help="Size of the slices that are decoded.")
@click.option("--repeats", type=COUNT, default=5, show_default=True, help="Samples of each way.")
@click.option("--workload", "workloads", multiple=True, type=click.Choice(WORKLOADS), help="Only these.")
@click.option("--way", "names", multiple=True, help="Only ways with this in their name; may be repeated.")
def main(**values: Any) -> list[Result]:
    """See the module."""
    options = Options(**values)
    chosen = choose_ways(options)
    native = "built" if installed_library().exists() else "not built"
    click.echo(f"{describe_machine(VERSIONS)}; native op {native}")
    with tempfile.TemporaryDirectory() as temporary:
        data = make_data((options.folder or Path(temporary)).absolute(), options, chosen)
        samples: Samples = {}
        for _ in range(options.repeats):
            for way in chosen:
                for names, figures in take_samples(way, data[way.dataset]):
                    samples.setdefault(names, []).append(figures)
                    click.echo(f"{', '.join(names)}: {figures.mb_per_s:.0f} MB/s")
    print_medians(samples)
    results = compare_best(samples)
    print_results(results)
    return results


if __name__ == "__main__":
    main()
