"""TensorBoard's view of a run: ``tensorboard/`` in its folder, a file of events beside each file of metrics.

The format is that of TensorFlow's own files of events: records of TFRecord framing, each an ``Event`` of TensorFlow's
tensorflow/core/util/event.proto, described to protobuf here: a run with PyTorch has no TensorFlow. They are made in
memory, because a kill would leave a local folder.
"""

import math
import re
from collections.abc import Sequence
from datetime import datetime
from statistics import fmean
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from etl.formats.records import frame
from train.runs.metrics import PARTS, SECONDS, Line

FOLDER = "tensorboard"
VERSION = "brain.Event:2"
WINDOWS = 100  # of the steps between two checkpoints: what a curve can show, in a fraction of the bytes
EPOCH = ".epoch"  # after the name of a file that ends with an epoch: its steps may be in a file of the same second
EVENTS_NAME = re.compile(rf"events\.out\.tfevents\.(\d+)\.(\d+)({re.escape(EPOCH)})?")


def events_file(lines: Sequence[Line]) -> tuple[str, bytes]:
    """The name and the content of the file with the curves of these lines. Pure."""
    last = lines[-1]
    seconds = int(_seconds(last))  # TensorBoard reads files by their names, which begin with a time
    name = f"events.out.tfevents.{seconds:010d}.{last['step']:09d}{EPOCH if last['kind'] == 'epoch' else ''}"
    return name, events_of(lines)


def events_of(lines: Sequence[Line]) -> bytes:
    """A file of events with the curves of these lines. Pure."""
    events = [_Event(wall_time=_seconds(lines[0]), file_version=VERSION)]
    for window in windows([line for line in lines if line["kind"] == "step"], WINDOWS):
        events.append(_event(window[-1], window[-1]["step"], scalars(window)))
    for line in lines:
        if line["kind"] == "epoch":
            found = {name: value for name, value in line.items() if name not in ("kind", "epoch", "step", "time")}
            events.append(_event(line, line["epoch"], {f"epoch/{name}": _number(each) for name, each in found.items()}))
    return b"".join(frame(event.SerializeToString())[0] for event in events)


def _event(line: Line, step: int, values: dict[str, float]) -> Any:
    event = _Event(wall_time=_seconds(line), step=step)
    for name, value in values.items():
        event.summary.value.add(tag=name, simple_value=value)
    return event


def _build_event() -> Any:
    """The message class, with the fields that are used here."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="ringslice/event.proto", package="tensorflow", syntax="proto2")
    messages = {
        "Value": [("tag", 1, field.TYPE_STRING), ("simple_value", 2, field.TYPE_FLOAT)],
        "Summary": [("value", 1, field.TYPE_MESSAGE)],
        "Event": [
            ("wall_time", 1, field.TYPE_DOUBLE),
            ("step", 2, field.TYPE_INT64),
            ("file_version", 3, field.TYPE_STRING),
            ("summary", 5, field.TYPE_MESSAGE),
        ],
    }
    for message, members in messages.items():
        described = file.message_type.add(name=message)
        for name, number, kind in members:
            entry = described.field.add(name=name, number=number, type=kind, label=field.LABEL_OPTIONAL)
            if kind == field.TYPE_MESSAGE:
                entry.type_name = f".tensorflow.{name.title()}"
            if name == "value":
                entry.label = field.LABEL_REPEATED
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Event"))


_Event = _build_event()


def _seconds(line: Line) -> float:
    return datetime.fromisoformat(line["time"]).timestamp()


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def windows(lines: Sequence[Line], number: int) -> list[Sequence[Line]]:
    """The lines in at most ``number`` stretches of equal length. Pure."""
    length = max(1, -(-len(lines) // number))
    return [lines[start : start + length] for start in range(0, len(lines), length)]


def scalars(window: Sequence[Line]) -> dict[str, float]:
    """What a curve shows of some steps: means over them, and over the ranks. Pure."""
    seconds = {name: fmean(line[name]["mean"] for line in window) for name in SECONDS}
    whole = seconds["step_s"] or 1.0
    return {
        "step/loss": fmean(_number(line["loss"]) for line in window),
        "step/accuracy": fmean(line["accuracy"] for line in window),
        "step/learning_rate": window[-1]["rate"],
        "step/images_per_s": fmean(line["examples"] for line in window) / whole,
        **{f"share/{part}": seconds[name] / whole for part, name in PARTS.items()},
    }
