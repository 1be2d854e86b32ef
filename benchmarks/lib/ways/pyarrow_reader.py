"""Ways to read slices with pyarrow, peers in `benchmarks/reader.py`."""

import struct
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pyarrow as pa
from crc32c import crc32c
from pyarrow import fs

from etl.formats.records import FOOTER_BYTES, HEADER_BYTES, mask
from etl.storage.place import open_place
from lib.ways.reader_job import Job

CHUNK_BYTES = 8 << 20


def raw(job: Job) -> int:
    """pyarrow's `read_buffer` and nothing else, with a thread for each slice that is read at the same time."""

    def read(uri: str) -> None:
        with open_place(uri).open_input() as file:
            while file.read_buffer(CHUNK_BYTES).size:
                pass

    with ThreadPoolExecutor(job.at_once) as pool:
        list(pool.map(read, job.all_files))
    return job.examples * job.passes


def copied(job: Job) -> int:
    """Copy the slices to a local folder by pyarrow's `copy_files`; read with `TFRecordDataset`, 8 MiB buffers."""
    from lib.ways import tf_peers  # here, because the other ways need no TensorFlow

    with tempfile.TemporaryDirectory(prefix="ringslice-") as folder:

        def copy(uri: str) -> str:
            place = open_place(uri)
            target = f"{folder}/{place.name}"
            fs.copy_files(place.path, target, place.filesystem.arrow, fs.LocalFileSystem(), chunk_size=CHUNK_BYTES)
            return target

        with ThreadPoolExecutor(job.at_once) as pool:
            files = list(pool.map(copy, job.files))
        return tf_peers.tfrecords(replace(job, files=files, at_once=1, buffer_bytes=CHUNK_BYTES))


def generator(job: Job) -> int:
    """A Python generator of single records with every CRC checked, into `from_generator`."""
    import tensorflow as tf

    from lib.ways import tf_peers

    def records() -> Iterator[bytes]:
        for uri in job.all_files:
            with open_place(uri).open_input() as file:
                yield from _split(file)

    dataset = tf.data.Dataset.from_generator(records, output_signature=tf.TensorSpec((), tf.string))
    return tf_peers.count(dataset.batch(job.batch).prefetch(tf.data.AUTOTUNE))


def _split(file: pa.NativeFile) -> Iterator[bytes]:
    data = b""
    while chunk := file.read(CHUNK_BYTES):
        data += chunk
        start = 0
        while start + HEADER_BYTES <= len(data):
            length, length_crc = struct.unpack_from("<QI", data, start)
            first, end = start + HEADER_BYTES, start + HEADER_BYTES + length
            if end + FOOTER_BYTES > len(data):
                break
            record = data[first:end]
            crcs = length_crc, *struct.unpack_from("<I", data, end)
            assert crcs == (mask(crc32c(data[start : start + 8])), mask(crc32c(record))), "a damaged record"
            yield record
            start = end + FOOTER_BYTES
        data = data[start:]
