"""Ways to read slices with pyarrow, peers in `benchmarks/reader.py`."""

from concurrent.futures import ThreadPoolExecutor

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
