#!/usr/bin/env python3
"""Print facts of models and of steps on one rank, as JSON: argv[1] are shapes of images, each with a number of classes.

- ``parameters``: the number of weights of each model for each shape.
- ``on_meta``: the models of which the weights take no memory while they are built.
- ``changes``: by how much a step of no example, of one, and of three in four parts changed the weights and statistics
  of a model whose batch norm has one value of each channel.
- ``constant_channel``: the mean of each of two channels, normalized; the second one has no deviation.
"""

import json
import sys
from functools import partial

import torch

from etl.slices.manifest import Manifest
from train.config.recipe import Recipe
from train.config.settings import Settings
from train.parallel.collective import SingleProcess
from train.torch_backend.feed import PixelBatch, statistics_of
from train.torch_backend.models import BUILDERS, build, build_on_meta
from train.torch_backend.replicas import DataParallel
from train.torch_backend.trainer import TorchTrainer

SIDE, CLASSES, BATCH = 4, 3, 8
TINY = "tests.lib.torch_ranks.tiny"


def count(name: str, height: int, width: int, channels: int, classes: int) -> int:
    model = build_on_meta(partial(build, name, (height, width, channels), classes))  # without drawing any weights
    return sum(each.numel() for each in model.state_dict().values())


def is_on_meta(name: str) -> bool:
    model = build_on_meta(partial(build, name, (28, 28, 1), 10))
    return all(each.is_meta for each in model.state_dict().values())


def change(examples: int, parts: int) -> float:
    """The largest change of any value; nan if one is not a number then."""
    recipe = Recipe(model=f"{TINY}:flat", batch=BATCH // parts, accumulate=parts, weight_decay=0.0)
    manifest = Manifest(tuple("abc"), SIDE, SIDE, 1, "PNG", {}, (127.0,), (50.0,))
    trainer = TorchTrainer(Settings("", recipe=recipe), manifest, DataParallel(SingleProcess()), torch.device("cpu"))
    before = {name: each.clone() for name, each in trainer.model.state_dict().items()}
    random = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (BATCH, SIDE, SIDE, 1), dtype=torch.uint8, generator=random)
    weights = (torch.arange(BATCH) < examples).float()
    trainer.train_step(PixelBatch(pixels, torch.arange(BATCH) % CLASSES, weights, []), 0, 0.1)
    after = trainer.model.state_dict()
    return float(torch.stack([(after[name] - each).abs().max() for name, each in before.items()]).max())


mean, std = statistics_of(Manifest(tuple("abc"), SIDE, SIDE, 2, "PNG", {}, (3.0, 5.0), (2.0, 0.0)))
facts = {
    "parameters": {name: [count(name, *each) for each in json.loads(sys.argv[1])] for name in BUILDERS},
    "on_meta": [name for name in ("resnet50", f"{TINY}:tiny", f"{TINY}:branched") if is_on_meta(name)],
    "changes": [str(change(*each)) for each in ((0, 1), (1, 1), (3, 4))],  # JSON has no nan
    "constant_channel": ((mean - mean) / std).tolist(),
}
print(json.dumps(facts, allow_nan=False))
