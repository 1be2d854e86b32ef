"""What tests of killed tasks share: a dataset, and the slices that the commands make of it without Airflow."""

import secrets
from dataclasses import dataclass
from pathlib import Path

import pytest

from etl.storage.place import Place, open_place
from tests.lib.commands import succeeded
from tests.lib.in_process import ringslice_here
from tests.lib.on_hadoop import digests


@dataclass(frozen=True)
class Dataset:
    """What the DAG `image_dataset` is given, and the root that the same commands made without Airflow."""

    source: Path
    config: Path
    root: Path

    def params(self, root: object) -> dict[str, str]:
        words = {"source": self.source, "config": self.config, "root": root, "size": 28, "name": "default"}
        return {name: str(value) for name, value in words.items()}

    def is_equal(self, root: Place) -> bool:
        """True if the slices of ``root`` have the same bytes."""
        return bool(expected := slices_of(open_place(str(self.root)))) and slices_of(root) == expected


def slices_of(root: Place) -> dict[str, str]:
    return {name: digest for name, digest in digests(root / "slices/default").items() if name.endswith(".tfrecord")}


@pytest.fixture
def run() -> str:
    """The id of a DAG run: a folder of a test that passed is deleted, and the next test may get its name."""
    return f"run-{secrets.token_hex(4)}"


@pytest.fixture(scope="module")
def undisturbed(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "options.toml").write_text('[ingest]\npack-size = "32KB"\n[shard]\nslices = 64\n')
    made = Dataset(digits, folder / "options.toml", folder / "root")
    words = ("-r", "inline", "--size", 28, "--config", made.config)
    succeeded(ringslice_here("pipeline", digits, made.root, *words))
    return made
