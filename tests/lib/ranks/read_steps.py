#!/usr/bin/env python3
"""Some steps of an epoch on each rank, from the state in a file; the keys of every rank, and the state after it.

horovodrun -np 3 tests/lib/ranks/read_steps.py SLICES FOLDER 4      # at most 4 steps
"""

import json
import os
import sys
from itertools import islice
from pathlib import Path

from etl.errors import end_process
from etl.formats.example import parse
from etl.slices.manifest import Manifest
from etl.storage.place import open_place
from train.reader.config import Reading
from train.reader.reader import SplitReader
from train.reader.state import ReaderState

BATCH = 7
LANES = 3


def main(slices: str, folder: str, most: str) -> None:
    rank, world_size = int(os.environ["HOROVOD_RANK"]), int(os.environ["HOROVOD_SIZE"])
    place, out = open_place(slices), Path(folder)
    manifest = Manifest.from_json((place / "manifest.json").read_json())
    reader = SplitReader(place, manifest, "train", Reading(lanes=LANES))
    state = ReaderState.from_json(json.loads((out / "state.json").read_text()), "these", reader.total)
    order = reader.order(state.seed, state.epoch, state.window_blocks)
    state = state.shared(world_size, reader.lanes(world_size))
    steps = reader.steps(state, BATCH)
    step = min(int(most), steps.number)
    keys = [
        parse(example).key
        for batch in islice(reader.batches(order, steps, rank, state.left), step)
        for example, weight in zip(batch.examples(), batch.weights, strict=True)
        if weight
    ]
    (out / f"keys-{rank}.json").write_text(json.dumps({"world_size": world_size, "step": step, "keys": keys}))
    if rank == 0:
        (out / "next.json").write_text(json.dumps(state.after(step * BATCH).to_json()))


if __name__ == "__main__":
    main(*sys.argv[1:])
    end_process(0)
