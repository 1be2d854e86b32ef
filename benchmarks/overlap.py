#!/usr/bin/env python3
"""A training step of two ranks by the size of the buckets in which gradients are reduced, on one synthetic batch.

    python benchmarks/overlap.py
    python benchmarks/overlap.py --model resnet50:96:16 --bucket 1B --bucket 8MB
    python benchmarks/overlap.py --timeline docs/overlap.svg

All buckets of a model are in one run, in turns: 1B reduces each gradient alone, "one" all together when the last one
is there, as without overlap. A ratio is that of the milliseconds per step to those of "one"; below 1 is faster.

- cnn: 0.1 million parameters, 28 pixels; nothing to overlap.
- resnet50: 24 million parameters, 96 pixels.
- wide: 25 million parameters (100 MB) in dense layers.
- delayed: 12 gradients of 16 MB, 50 ms apart, which take no processor time: a backward pass on an accelerator.

--timeline draws a step of delayed with one bucket and with those of the trainer, from Horovod's timeline.
"""

import statistics
import tempfile
from pathlib import Path

import click

from etl.values import parse_bytes
from lib import timeline as timelines
from lib.command import COUNT, CheckedText, benchmark
from lib.processes import describe_machine, run_ranks
from lib.results import Result, compare

RANKS, ONE = 2, 1 << 50
MODELS = ("cnn:28:64", "resnet50:96:16", "lib.ways.overlap:wide:16:32", "delayed:12:16")
BUCKETS = ("1B", "1MB", "4MB", "8MB", "16MB", "32MB", "one")
VERSIONS = ("tensorflow-cpu", "keras", "horovod", "numpy")
DELAYED = ("delayed", 12, 16)
TIMELINE_BUCKETS = {"one all-reduce, when the last gradient is there": ONE, "buckets of 8 MB": 8 << 20}
SHORT = {"models": ["cnn:28:64"], "buckets": ["8MB", "one"], "steps": 5, "rounds": 2}


def bucket_bytes(text: str) -> int:
    """The bytes of a bucket, as `--bucket` has it. Raises ValueError."""
    return ONE if text == "one" else parse_bytes(text)


@benchmark(__file__, __doc__, SHORT)
@click.option(
    "--model", "models", multiple=True, default=MODELS, help="MODEL:SIDE:BATCH of each rank; may be repeated."
)
@click.option(
    "--bucket",
    "buckets",
    type=CheckedText(bucket_bytes),
    multiple=True,
    default=BUCKETS,
    help="Bytes, or one for all; may be repeated.",
)
@click.option("--steps", type=COUNT, default=10, show_default=True, help="Steps of each sample.")
@click.option("--rounds", type=COUNT, default=5, show_default=True, help="Samples of each bucket, in turns.")
@click.option("--timeline", type=click.Path(path_type=Path), metavar="FILE", help="Draw a step there, as SVG.")
def main(
    models: tuple[str, ...], buckets: tuple[str, ...], steps: int, rounds: int, timeline: Path | None
) -> list[Result]:
    click.echo(describe_machine(VERSIONS))
    if timeline is not None:
        draw_steps(timeline, steps)
        return []
    results = []
    for model in models:
        sizes = {bucket_bytes(each): each for each in dict.fromkeys((*buckets, "one"))}
        samples = measure(model, list(sizes), steps, rounds)
        for size, name in sizes.items():
            median = statistics.median(samples[size])
            ratio = compare(f"overlap, {model}, {name}", "ms", samples[size], "one", samples[ONE])
            click.echo(f"{model:30} {name:>5} {median:9.1f} ms/step, ratio {ratio.ratio:.3f}")
            results.append(ratio)
    return results


def measure(model: str, sizes: list[int], steps: int, rounds: int) -> dict[int, list[float]]:
    """Milliseconds per step by bytes of a bucket, one for each round."""
    samples: dict[int, list[float]] = {size: [] for size in sizes}
    for told in run_ranks(RANKS, "overlap.py", steps, rounds, model, *sizes):
        samples[told["bytes"]].append(told["ms"])
    return samples


def draw_steps(path: Path, steps: int) -> None:
    """Draw the first of so many steps, after one to warm up, of the delayed backward pass."""
    name, count, megabytes = DELAYED
    panels = {}
    for title, size in TIMELINE_BUCKETS.items():
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder) / "timeline.json"
            job = f"{name}:{count}:{megabytes}"
            (told,) = run_ranks(RANKS, "overlap.py", steps, 1, job, size, variables={"HOROVOD_TIMELINE": str(trace)})
            gradients = timelines.read_step(trace, told["started"], told["there"])
        panels[f"{title}: {max(each.reduced for each in gradients):.0f} ms"] = gradients
    path.write_text(timelines.draw(panels))
    click.echo(f"{path}: " + "; ".join(panels))


if __name__ == "__main__":
    main()
