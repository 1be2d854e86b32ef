#!/usr/bin/env python3
"""Some steps of an epoch by one number of ranks after the other, from the state in a file.

    horovodrun -np 4 tests/lib/ranks/read_steps.py SLICES STATE 3:4 2:9    # at most 4 steps of 3 ranks, then 9 of 2

At each turn a rank opens a reader and goes on from the state after the turn before, as JSON. It prints for each turn
RANKS:STEPS that it takes part in the steps and the keys of its examples; at the end, for ``state``, the state.
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
from tests.lib.ranks.results import print_result
from train.reader.config import Reading
from train.reader.reader import SplitReader
from train.reader.state import ReaderState

BATCH = 7
LANES = 3


def take_turn(slices: str, state_json: str, turn: str) -> str:
    """Read this rank's part; returns the state after it."""
    rank = int(os.environ["HOROVOD_RANK"])
    world_size, most = (int(each) for each in turn.split(":"))
    place = open_place(slices)
    manifest = Manifest.from_json((place / "manifest.json").read_json())
    reader = SplitReader(place, manifest, "train", Reading(lanes=LANES))
    state = ReaderState.from_json(json.loads(state_json), "these", reader.total)
    order = reader.order(state.seed, state.epoch, state.window_blocks)
    state = state.shared(world_size, reader.lanes(world_size), BATCH)
    steps = state.steps
    step = min(most, steps.number)
    if rank < world_size:
        keys = [
            parse(example).key
            for batch in islice(reader.batches(order, steps, rank, state.left), step)
            for example, weight in zip(batch.examples(), batch.weights, strict=True)
            if weight
        ]
        print_result(turn, step=step, keys=keys)
    return json.dumps(state.after(step).to_json())


def main(slices: str, state: str, *turns: str) -> None:
    state_json = Path(state).read_text()
    for turn in turns:
        state_json = take_turn(slices, state_json, turn)
    print_result("state", state=json.loads(state_json))


if __name__ == "__main__":
    main(*sys.argv[1:])
    end_process(0)
