"""Checks slices with TensorFlow and hashlib alone; imports nothing of ringslice.

python tests/lib/independent_checker.py ROOT/slices/NAME SOURCE
"""

import hashlib
import json
import os
import sys
from pathlib import Path

import tensorflow as tf

slices, source = sys.argv[1:]
manifest = json.loads(Path(slices, "manifest.json").read_text())
walked = [os.path.join(folder, name) for folder, _, names in os.walk(source) for name in names]
missing = {os.path.relpath(path, source) for path in walked}
for split, facts in manifest["splits"].items():
    by_class = [0] * len(manifest["classes"])
    for each in facts["slices"]:
        path = f"{slices}/{each['name']}.tfrecord"
        data = Path(path).read_bytes()
        assert hashlib.sha256(data).hexdigest() == each["sha256"], path
        records = [record.numpy() for record in tf.data.TFRecordDataset(path)]
        index = [tuple(map(int, line.split())) for line in Path(slices, f"{each['name']}.idx").read_text().splitlines()]
        assert len(records) == len(index) == each["records"], path
        assert sum(size for _, size in index) == len(data) == each["bytes"], path
        for record, (offset, size) in zip(records, index, strict=True):
            assert data[offset + 12 : offset + size - 4] == record, (path, offset)
            feature = tf.train.Example.FromString(record).features.feature
            key = feature["image/key"].bytes_list.value[0].decode()
            label = feature["image/class/label"].int64_list.value[0]
            missing.remove(key)  # KeyError: it was there twice, or was never in the source
            assert manifest["classes"][label] == key.split("/")[0], key
            by_class[label] += 1
    assert by_class == facts["by_class"] and sum(by_class) == facts["records"], split
assert not missing, f"not in any slice: {sorted(missing)[:5]}"
print("every image exactly once;", {split: facts["records"] for split, facts in manifest["splits"].items()})
