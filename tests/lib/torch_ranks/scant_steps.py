#!/usr/bin/env python3
"""Take steps on one rank alone: argv[1] is JSON, the number of examples and of parts of each.

Prints by how much each changed the weights and statistics of a model whose batch norm has one value of each channel.
"""

import json
import sys

import torch

from etl.slices.manifest import Manifest
from train.config.recipe import Recipe
from train.config.settings import Settings
from train.parallel.collective import Alone
from train.strategies.ddp import DataParallel
from train.torch_backend.feed import PixelBatch
from train.torch_backend.trainer import TorchTrainer

SIDE, CLASSES, BATCH = 4, 3, 8


def change(examples: int, parts: int) -> float:
    """The largest change of any value; nan if one is not a number then."""
    recipe = Recipe(model="tests.lib.torch_ranks.tiny:flat", batch=BATCH // parts, accumulate=parts, weight_decay=0.0)
    manifest = Manifest(tuple("abc"), SIDE, SIDE, 1, "PNG", {}, (127.0,), (50.0,))
    trainer = TorchTrainer(Settings("", recipe=recipe), manifest, DataParallel(Alone()), torch.device("cpu"))
    before = {name: each.clone() for name, each in trainer.model.state_dict().items()}
    random = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (BATCH, SIDE, SIDE, 1), dtype=torch.uint8, generator=random)
    weights = (torch.arange(BATCH) < examples).float()
    trainer.train_step(PixelBatch(pixels, torch.arange(BATCH) % CLASSES, weights, []), 0, 0.1)
    after = trainer.model.state_dict()
    return float(torch.stack([(after[name] - each).abs().max() for name, each in before.items()]).max())


print(json.dumps([str(change(*each)) for each in json.loads(sys.argv[1])], allow_nan=False))  # "nan" is no JSON
