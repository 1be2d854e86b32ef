#!/usr/bin/env python3
"""Print, as JSON, which of the models in argv[1:] are built without memory for their weights."""

import json
import sys
from functools import partial

from train.torch_backend.models import build, build_on_meta


def is_on_meta(name: str) -> bool:
    model = build_on_meta(partial(build, name, (28, 28, 1), 10))
    return all(each.is_meta for each in model.state_dict().values())


print(json.dumps({name: is_on_meta(name) for name in sys.argv[1:]}, allow_nan=False))
