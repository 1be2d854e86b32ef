"""Whole stages in this process, for tests that run many: what `ringslice STAGE -r inline` does, without its start."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from etl.erase.command import erase
from etl.errors import RingsliceError
from etl.options.click_command import invoke, option_values
from etl.options.stage_options import INGEST_OPTIONS
from etl.raw.ingest import ingest
from etl.stages.summary import Summary
from etl.storage.place import Place, open_place
from mapreduce.jobs.stage_job import StageJob, script_command
from mapreduce.normalize import Normalize
from mapreduce.shard import Shard


def ingest_here(source: Path | Place, root: Path | Place, *, overwrite: bool = False, **values: object) -> None:
    """Ingest with these option values, as text; errors come as they are raised."""
    ingest(open_place(str(source)), open_place(str(root)), ingest_values(**values), overwrite)


def ingest_values(**values: object) -> dict[str, Any]:
    """What the options of `ingest` give where these are said, as text, and nothing else."""
    words = []
    for name, value in values.items():
        if value is not None and value is not False:
            words.append(f"--{name.replace('_', '-')}" + (f"={value}" if value is not True else ""))
    return option_values(INGEST_OPTIONS, *words)


def run_here(job: type[StageJob], root: Path | Place, *words: object) -> None:
    """Run a job with these words on its command line; errors come as they are raised."""
    invoke(script_command(job), job.__name__, words=[str(root), "-r", "inline", *map(str, words)])


def normalize_here(root: Path | Place, *words: object) -> None:
    run_here(Normalize, root, *words)


def shard_here(root: Path | Place, *words: object) -> None:
    run_here(Shard, root, *words)


def erase_here(root: Path | Place, listed: Path | Place, *, dry_run: bool = False) -> Summary:
    """Erase the images whose keys are listed in a file; errors come as they are raised."""

    def run_job(stage: str, values: Mapping[str, Any]) -> None:
        job = Normalize.of_words(str(root), "-r", "inline")
        job.run_stage(option_values(job.OPTIONS) | dict(values), lambda summary: None)

    return erase(open_place(str(root)), open_place(str(listed)), run_job, dry_run=dry_run)


def refused(
    job: type[StageJob], status: int, line: str, root: Path | Place, *words: object, one_line: bool = True
) -> None:
    """The job fails, would exit with ``status``, and its message (of ``one_line``) has ``line`` in it."""
    with pytest.raises(RingsliceError) as raised:
        run_here(job, root, *words)
    assert raised.value.status == status
    assert line in str(raised.value)
    assert not (one_line and "\n" in str(raised.value))
