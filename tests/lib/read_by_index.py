"""Reads slices with the `tfrecord` package alone, by their indexes; a line of JSON for each record, in order.

python tests/lib/read_by_index.py ROOT/slices/NAME

A process of its own, for the package and TensorFlow each bring a definition of the same message.
"""

import hashlib
import json
import sys
from pathlib import Path

from tfrecord.reader import tfrecord_loader

FEATURES = {"image/key": "byte", "image/class/label": "int", "image/encoded": "byte"}
WHOLE = (0, 1)  # the first of one shard; without a shard it begins anywhere

folder = sys.argv[1]
manifest = json.loads(Path(folder, "manifest.json").read_text())
for split in manifest["splits"].values():
    for each in split["slices"]:
        path = f"{folder}/{each['name']}"
        for example in tfrecord_loader(f"{path}.tfrecord", f"{path}.idx", FEATURES, WHOLE):
            key, encoded = (bytes(example[name]) for name in ("image/key", "image/encoded"))
            print(json.dumps([key.decode(), int(example["image/class/label"][0]), hashlib.sha256(encoded).hexdigest()]))
