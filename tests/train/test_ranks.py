"""Real Horovod processes: the same steps as one rank, the same weights everywhere, the literal line, the whole way."""

import json
import os
import re
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.lib.commands import REPOSITORY, copy_some, failed, horovodrun, run, succeeded
from tests.lib.in_process import ringslice_here
from tests.lib.inline import shard_here
from tests.lib.ranks.outcomes import committed_keys, require_each_key_once
from tests.lib.ranks.running import bytes_per_step

pytestmark = pytest.mark.integration


@pytest.mark.witness
def test_the_literal_line_on_eight_ranks(root: Path) -> None:
    """horovodrun -np 8 train/main.py: eight processes, disjoint keys, together the epoch."""
    output = run(
        *("env", "-u", "TF_CPP_MIN_LOG_LEVEL", "horovodrun", "-np", 8, "train/main.py"),
        timeout_s=240,
        RINGSLICE_DATA=str(root.parent),
        RINGSLICE_AUDIT="1",
        RINGSLICE_EPOCHS="2",
        RINGSLICE_MODEL="mlp",
    )
    assert "train: done" in succeeded(output).stdout
    assert re.fullmatch(r"(\[0\]<stderr>:ringslice train.*: .+\n)+", output.stderr), output.stderr  # none of TensorFlow
    assert re.search(r"23 steps of --batch 8 on each rank$", output.stderr, re.MULTILINE)
    assert re.search(r"train: 8 ranks on 1 host: CPU \(\d+ cores? each\), Gloo$", output.stderr, re.MULTILINE)
    parameters = int(re.search(r"mlp of ([\d,]+) parameters", output.stderr)[1].replace(",", ""))  # type: ignore[index]
    sent = 2 * 7 / 8 * 4 * parameters  # by a ring
    assert bytes_per_step(root / "runs/run-0001") == pytest.approx([sent] * 16, rel=0.15)
    ranks = json.loads((root / "runs/run-0001/run.json").read_text())["ranks"]
    assert [each["rank"] for each in ranks] == list(range(8))
    assert len({each["pid"] for each in ranks}) == 8
    require_each_key_once(root / "runs/run-0001", root / "slices" / "default", epochs=2)
    for epoch in (1, 2):
        audits = sorted((root / "runs/run-0001/audit").glob(f"epoch-{epoch:04d}-*.txt"))
        assert sorted(len(audit.read_text().splitlines()) for audit in audits) == [179] * 3 + [180] * 5
    result = json.loads((root / "runs/run-0001/result.json").read_text())
    assert 0 < result["result"]["test_accuracy"] <= 1
    assert not (root / "runs/run-0001/_work").exists()


def test_more_ranks_than_examples_is_reported_once(digits: Path, tmp_path: Path) -> None:
    source, root = copy_some(digits, tmp_path / "source", "01", slice(1)), tmp_path / "root"
    words = ("-r", "inline", "--size", 8, "--color", "gray", "--workers", 1, "--split", "train=0.5,test=0.5")
    succeeded(ringslice_here("pipeline", source, root, *words))
    output = horovodrun(2, "train/main.py", "--data", root)
    assert output.returncode != 0
    [line] = [line for line in (output.stderr + output.stdout).splitlines() if "ringslice: error:" in line]
    assert "2 ranks for 1 training examples; start fewer ranks" in line


def test_a_users_own_model_trains_once(root: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import keras\n"
        "def linear(shape, classes):\n"
        "    return keras.Sequential([keras.Input(shape), keras.layers.Flatten(), keras.layers.Dense(classes)])\n"
    )
    main = os.path.join(REPOSITORY, "train", "main.py")
    words = ("--data", root, "--model", "mine:linear", "--epochs", 4, "--lr", 0.01, "--json")
    output = json.loads(succeeded(run("python", main, *words, cwd=tmp_path)).stdout)
    assert output["model"] == "mine:linear"
    assert output["test_accuracy"] > 0.8
    again = json.loads(succeeded(run("python", main, *words, "--resume", cwd=tmp_path)).stdout)
    assert (output["already_done"], again["already_done"]) == (False, True)
    assert again["test_accuracy"] == output["test_accuracy"]


def test_a_run_on_one_group_reads_that_group_only(digits_root: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(digits_root / "normalized", root / "normalized")
    shard_here(root, "--workers", 4, "--groups", 2, "--slices", 4)
    words = ("train/main.py", "--data", root, "--model", "mlp", "--epochs", 1, "--audit")
    failed(run(*words, "--group", 2), 2, "--group 2: these slices have the groups 0 to 1")
    succeeded(run(*words, "--group", 1, "--run", "second"))
    output = json.loads((root / "slices/default/manifest.json").read_text())["splits"]["train"]["groups"][1]
    rows = pq.read_table(root / "slices/default/examples.parquet", columns=["key", "slice"]).to_pylist()
    keys = committed_keys(root / "runs/second", 1)
    assert sorted(keys) == sorted(row["key"] for row in rows if "/group-1/" in row["slice"])
    assert len(keys) == output["records"]


@pytest.mark.chaos
@pytest.mark.parametrize("ranks", [1, 8])
def test_the_demo_reaches_its_accuracy_on_any_number_of_ranks(ranks: int, root: Path) -> None:
    succeeded(horovodrun(ranks, "train/main.py", "--data", root))
    result = json.loads((root / "runs/run-0001/result.json").read_text())
    assert result["result"]["test_accuracy"] >= 0.97
