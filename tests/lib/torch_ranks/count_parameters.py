"""Print, as JSON, the number of weights of each model of PyTorch for the shapes of images and classes in argv[1]."""

import json
import sys

from train.torch_backend.models import BUILDERS, build


def count(name: str, height: int, width: int, channels: int, classes: int) -> int:
    return sum(each.numel() for each in build(name, (height, width, channels), classes).state_dict().values())


shapes = json.loads(sys.argv[1])
print(json.dumps({name: [count(name, *each) for each in shapes] for name in BUILDERS}, allow_nan=False))
