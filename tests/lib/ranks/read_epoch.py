"""Reads an epoch in a process of its own, for tests that disturb it: `python -m tests.lib.ranks.read_epoch FOLDER
READING`.

READING is JSON: fields of `train.reader.config.ReaderOptions`. After the first batch it prints a
line and waits for one. At the end it prints, as JSON: number and CRC32C of every example that is not a repeat, and what
was raised (its kind and message).
"""

import json
import sys

from crc32c import crc32c

from etl.entry_point import end_process
from etl.errors import RingsliceError
from etl.slices.manifest import Manifest
from etl.storage.place import open_place
from train.reader.batches import RecordBatch
from train.reader.config import ReaderOptions
from train.reader.intervals import Steps
from train.reader.reader import SplitReader

BATCH = 8


def main(folder: str, reading: str) -> None:
    place = open_place(folder)
    manifest = Manifest.from_json((place / "manifest.json").read_json())
    reader = SplitReader(place, manifest, "train", ReaderOptions(**json.loads(reading)))
    batches = reader.batches(reader.order(0, 1), Steps(reader.total, 1, BATCH), 0)
    examples, raised = list[tuple[int, int]](), None

    def take(batch: RecordBatch) -> None:
        for number, weight, example in zip(batch.numbers.tolist(), batch.weights, batch.examples(), strict=True):
            if weight:
                examples.append((number, crc32c(example)))

    take(next(batches))
    print("begun", flush=True)
    sys.stdin.readline()
    try:
        for batch in batches:
            take(batch)
    except RingsliceError as error:
        raised = (type(error).__name__, str(error))
    print(json.dumps({"examples": examples, "raised": raised}))
    end_process(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
