#!/usr/bin/env python3
"""How fast slices come out of storage: ours against its peers, in turns, each sample in a process of its own.

    make tensorflow-io
    python benchmarks/reader.py --hdfs hdfs://127.0.0.1:8020/tmp/reader

Three workloads of 8 slices, each read whole, from the page cache, after a first pass that is not counted (over all
slices where ways are close to each other, else over one):

- serialized: batches of 256 serialized examples of 30 to 50 KB (JPEGs of 256 pixels), from HDFS and locally.
- small: the same of Fashion-MNIST, 1 KB each, locally, five epochs in a row.
- decoded: batches of 64 pictures of 224 pixels, locally, the process on one core: examples/s is images/s per core.
  The peer resizes; ours takes the middle as for evaluation, or crops at random, flips and resizes as for training.

TensorFlow's own readers are asked for no order; ours has another one each epoch. All but pyarrow alone check the CRC of
every byte. Processor time is the process' own, with a JVM in it, without HDFS' daemons.
"""

import dataclasses
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import reader_data
from reader_pass import Job
from reader_table import HEADER, Claim, Sample, tell_medians, variant_name

from etl.hadoop.site_config import class_path, java_home, libhdfs_folder
from etl.slices.manifest import Manifest, read_manifest
from etl.stages.layout import slices_stage
from etl.storage.hdfs_settings import DRIVER_VARIABLE, LIBHDFS, NATIVE
from etl.storage.place import open_place
from etl.values import parse_bytes
from train.toolchain.build_records_op import installed_library

HERE = Path(__file__).resolve().parent
TFIO_PYTHON = HERE.parent / ".venvs" / "tfio" / "bin" / "python"
VERSIONS = ("tensorflow-cpu", "pyarrow", "hdfs-native", "crc32c", "numpy")
TFIO_VERSIONS = ("tensorflow-cpu", "tensorflow-io")
LARGE, SMALL, PICTURES = "photographs", "fashion", "pictures"
SMALL_EPOCHS = 5
SIDE = 224
BUFFER = {"buffer_bytes": 8 << 20}
ONE, TWO, FOUR, EIGHT = ({"at_once": number} for number in (1, 2, 4, 8))


@dataclass(frozen=True)
class Way:
    """One row of a workload: the function of `Job`, from where it reads, and its variants; ``settings`` are a job's."""

    workload: str
    name: str
    function: str
    dataset: str
    driver: str | None = None  # of HDFS; without one it reads local files
    variants: Sequence[Mapping[str, Any]] = ({},)
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def needs_tfio(self) -> bool:
        return self.function == "tf_peers:tensorflow_io"


WARM = {"warm_up": 8}
PLAIN = (ONE | BUFFER, EIGHT | BUFFER)
EPOCHS = {"passes": SMALL_EPOCHS}
ONE_CORE = {"side": SIDE, "core": 0, "batch": 64}

WAYS = (
    Way("serialized", "pyarrow, libhdfs", "reader_ways:raw", LARGE, LIBHDFS, (ONE, EIGHT), WARM),
    Way("serialized", "pyarrow, native", "reader_ways:raw", LARGE, NATIVE, (ONE, EIGHT), WARM),
    Way("serialized", "ringslice, libhdfs", "our_reader:serialized", LARGE, LIBHDFS, (TWO, FOUR, EIGHT), WARM),
    Way("serialized", "ringslice, native", "our_reader:serialized", LARGE, NATIVE, (TWO, FOUR, EIGHT), WARM),
    Way("serialized", "ringslice, local", "our_reader:serialized", LARGE, None, (TWO, FOUR, EIGHT), WARM),
    Way("serialized", "tensorflow-io", "tf_peers:tensorflow_io", LARGE, LIBHDFS, (ONE, EIGHT, *PLAIN), WARM),
    Way("serialized", "copy first", "reader_ways:copied", LARGE, LIBHDFS, (EIGHT,)),
    Way("serialized", "generator", "reader_ways:generator", LARGE, LIBHDFS),
    Way("serialized", "TFRecordDataset", "tf_peers:tfrecords", LARGE, None, PLAIN, WARM),
    Way("small", "ringslice", "our_reader:serialized", SMALL, None, (FOUR,), EPOCHS),
    Way("small", "TFRecordDataset", "tf_peers:tfrecords", SMALL, None, PLAIN, EPOCHS),
    Way("decoded", "ringslice, centre", "our_reader:decoded", PICTURES, None, (FOUR,), ONE_CORE),
    Way("decoded", "ringslice, crop, flip", "our_reader:augmented", PICTURES, None, (FOUR,), ONE_CORE),
    Way("decoded", "TFRecordDataset", "tf_peers:recipe", PICTURES, None, PLAIN[1:], ONE_CORE),
)
CLAIMS = (
    Claim("serialized", "ringslice, libhdfs", "pyarrow, libhdfs", 0.8),
    Claim("serialized", "ringslice, native", "pyarrow, native", 0.8),
    Claim("serialized", "ringslice, libhdfs", "tensorflow-io", 1.0),
    Claim("serialized", "ringslice, local", "TFRecordDataset", 0.9),
    Claim("small", "ringslice", "TFRecordDataset", 0.7),
    Claim("decoded", "ringslice, centre", "TFRecordDataset", 1.0),
    Claim("decoded", "ringslice, crop, flip", "TFRecordDataset", 1.0),
)


@dataclass(frozen=True)
class Data:
    """The roots of one dataset: the local one, and that on HDFS where its slices lie there too."""

    local: Path
    hdfs: str | None = None


def take_samples(way: Way, data: Data) -> Iterator[Sample]:
    """One sample of each variant of the way, all from one process."""
    manifest = read_manifest(slices_stage(open_place(str(data.local)), reader_data.NAME))
    split = Manifest.from_json(manifest).splits["train"]
    folder = f"{data.hdfs if way.driver else data.local}/slices/{reader_data.NAME}"
    files = [f"{folder}/{each.name}.tfrecord" for each in split]
    records, size_bytes = sum(each.records for each in split), sum(each.size_bytes for each in split)
    job = Job(way.function, folder, files, records, variants=list(way.variants), **way.settings)
    for told in _run(way, job):
        size = told["examples"] * size_bytes / records
        name = variant_name(told["variant"])
        yield Sample(way.workload, way.name, name, told["examples"], size, told["wall_s"], told["cpu_s"])


def _run(way: Way, job: Job) -> list[dict[str, Any]]:
    python = TFIO_PYTHON if way.needs_tfio else sys.executable
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"} | ({DRIVER_VARIABLE: way.driver} if way.driver else {})
    if way.needs_tfio:
        environment |= _environment_of_tfio()
    words = [python, HERE / "reader_pass.py", json.dumps(dataclasses.asdict(job))]
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{way.workload}, {way.name} failed:\n{done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def _environment_of_tfio() -> dict[str, str]:
    """What its HDFS needs: the jars, and both libraries where the linker looks; the JVM's options as Java has them."""
    libraries = f"{libhdfs_folder()}:{java_home()}/lib/server"
    return {"CLASSPATH": class_path(), "JAVA_HOME": str(java_home()), "LD_LIBRARY_PATH": libraries}


def make_data(folder: Path, size: str, pictures: str, hdfs: str | None) -> dict[str, Data]:
    """Make what is not there yet, and put the large slices on HDFS."""
    large, small, decoded = folder / f"{LARGE}-{size}", folder / SMALL, folder / f"{PICTURES}-{pictures}"
    reader_data.make_photographs(large, parse_bytes(size), slices=8)
    reader_data.make_photographs(decoded, parse_bytes(pictures), slices=8)
    reader_data.make_small_records(small)
    if hdfs:
        reader_data.put(large, f"{hdfs}/{large.name}")
    return {LARGE: Data(large, f"{hdfs}/{large.name}"), SMALL: Data(small), PICTURES: Data(decoded)}


def tell_versions() -> None:
    packages = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in VERSIONS)
    native = "built" if installed_library().exists() else "not built"
    click.echo(f"Python {platform.python_version()}, {packages}, native op {native}; {os.cpu_count()} cores")
    if TFIO_PYTHON.exists():
        told = subprocess.run([TFIO_PYTHON, "-m", "pip", "freeze"], check=True, capture_output=True, text=True).stdout
        click.echo("peer: " + ", ".join(line for line in told.splitlines() if line.startswith(TFIO_VERSIONS)))


@click.command(help=__doc__, context_settings={"max_content_width": 120})
@click.option("--folder", type=Path, help="Where the datasets go, and stay; default: a temporary one.")
@click.option("--hdfs", help="A folder on the cluster, as a URI; without it only what is local is measured.")
@click.option("--size", default="1GB", show_default=True, help="Size of the slices with serialized examples.")
@click.option("--pictures", default="80MB", show_default=True, help="Size of the slices that are decoded.")
@click.option("--repeats", default=5, show_default=True, help="Samples of each way.")
@click.option("--workload", "wanted", multiple=True, type=click.Choice(["serialized", "small", "decoded"]))
@click.option("--way", "names", multiple=True, help="Only ways with this in their name; may be repeated.")
def main(  # noqa: PLR0917
    folder: Path | None,
    hdfs: str | None,
    size: str,
    pictures: str,
    repeats: int,
    wanted: Sequence[str],
    names: Sequence[str],
) -> None:
    """See the module."""
    chosen = [
        way
        for way in WAYS
        if (hdfs or not way.driver)
        and (not wanted or way.workload in wanted)
        and (not names or any(name in way.name for name in names))
    ]
    if any(way.needs_tfio for way in chosen) and not TFIO_PYTHON.exists():
        raise click.UsageError("tensorflow-io is missing; run: make tensorflow-io")
    tell_versions()
    with tempfile.TemporaryDirectory() as temporary:
        local = (folder or Path(temporary)).absolute()
        data = make_data(local, size, pictures, hdfs)
        samples = []
        click.echo(HEADER)
        for _ in range(repeats):
            for way in chosen:
                for sample in take_samples(way, data[way.dataset]):
                    samples.append(sample)
                    click.echo(sample.told())
    tell_medians(samples, CLAIMS)


if __name__ == "__main__":
    main()
