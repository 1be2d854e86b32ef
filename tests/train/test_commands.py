"""The commands that start ranks, and real ranks of Horovod: which launcher, what is shown, and how they end."""

import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import nullcontext
from itertools import product
from pathlib import Path

import click
import pyarrow.parquet as pq
import pytest

from etl.errors import DataError
from etl.slices.manifest import Manifest
from etl.storage.place import open_place
from tests.lib.commands import (
    PATIENCE_S,
    REPOSITORY,
    Finished,
    failed,
    horovodrun,
    ringslice,
    run,
    succeeded,
    wait_until,
)
from tests.lib.in_process import call_command, ringslice_here
from tests.lib.inline import shard_here
from tests.lib.ranks.outcomes import committed_keys, require_each_key_once
from tests.lib.ranks.running import bytes_per_step, marked, metric_lines, spawn
from tests.lib.torch_ranks.running import BIN, in_torch, require_torch
from tests.lib.train_in_process import convert_here, evaluate_here, export_here, train_here
from train.export import command as export_command
from train.parallel.endings import LOST
from train.parallel.launchers import HOROVODRUN, LAUNCH, TORCHRUN, RankLines, Ranks
from train.predict import command as predict_command
from train.read_bench import show
from train.serving import files
from train.start import command as start_command
from train.start import is_json
from train.tf_backend.throughput import WAYS, Rate, Throughput

RANK = "t/main.py --run x"


def test_each_strategy_has_its_launcher() -> None:
    for ranks, line in (
        (Ranks("main.py"), f"py {RANK}"),
        (Ranks("main.py", count=2), f"py -P -m horovod.runner.launch -np 2 py {RANK}"),
        (Ranks("main.py", hosts="a:2,b:1"), f"py -P -m horovod.runner.launch -np 3 -H a:2,b:1 py {RANK}"),
        (Ranks("main.py", count=1, hosts="a:2"), f"py -P -m horovod.runner.launch -np 1 -H a:2 py {RANK}"),
        (Ranks("main.py", "mirrored"), f"py {RANK}"),
        (Ranks("main.py", "mirrored", 2), f"py {RANK} --replicas 2"),
        (Ranks("main.py", "multi-worker-mirrored", 2), f"py t/launch.py -np 2 {RANK}"),
        (Ranks("main.py", "parameter-server", 2), f"py t/launch.py --workers 2 --servers 1 {RANK}"),
        (Ranks("main.py", "synchronous-parameter-server", 2, 3), f"py t/launch.py --workers 2 --servers 3 {RANK}"),
        (Ranks("main.py", "ddp", 1), f"py {RANK}"),
        (Ranks("main.py", "ddp", 2), f"py -P -m torch.distributed.run --standalone --nproc-per-node 2 -- {RANK}"),
    ):
        assert ranks.command_line("py", "t", ["--run", "x"]) == line.split()


def shown_of(launcher: str, text: str, status: int = 1) -> tuple[int, str]:
    """What is left of a launcher's output, and the status."""
    lines = RankLines(launcher)
    shown = [each for line in text.splitlines(keepends=True) for each in lines.take(line, "stderr")]
    status, more = lines.ending(status)
    return status, "".join([*shown, *more])


HOROVOD_END = """[0]<stderr>:ringslice train: 2 ranks
[1]<stderr>:2026 a warning
Process 1 exit with status code {status}.
Traceback (most recent call last):
RuntimeError: The first process to do so was:
Process name: 1
Exit code: {status}
"""
TORCH_LINES = """ringslice train: 2 ranks
Traceback (most recent call last):
  File "/work/train/main.py", line 1
ringslice: interrupted; by torchrun
W1126 10:00:39.767000 4788 /x/torch/distributed/elastic/multiprocessing/api.py:1028] Sending SIGTERM
Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
[1]:
  rank      : 1 (local_rank: 1)
  exitcode  : 130 (pid: 4832)
Root Cause (first observed failure):
[0]:
  rank      : 0 (local_rank: 0)
  exitcode  : {status} (pid: 4831)
"""


def test_lines_of_horovodrun_are_kept_off() -> None:
    lines = "ringslice train: 2 ranks\n[1] 2026 a warning\n"
    status, shown = shown_of(HOROVODRUN, HOROVOD_END.format(status=3) + "[1]<stderr>:ringslice: error: why\n")
    assert (status, shown) == (3, f"{lines}ringslice: error: why\n")
    killed = shown_of(HOROVODRUN, HOROVOD_END.format(status=137) + "[1]<stderr>:Killed\n")
    assert killed == (137, f"{lines}ringslice: error: rank 1 was killed (SIGKILL)\n")
    status, shown = shown_of(HOROVODRUN, HOROVOD_END.format(status=3))  # no rank reported why
    assert status == 3 and "RuntimeError" in shown and "rank 1 ended with status 3; above is what" in shown
    assert shown_of(HOROVODRUN, "ssh failed\n")[0] == 3
    unreachable = "Traceback:\nssh not successful for host a:\nssh: why\r\n\nssh not successful for host b:\n"
    line = "ringslice: error: --hosts: a, b (ssh: why). Make this work without a password: ssh HOST true\n"
    assert shown_of(HOROVODRUN, unreachable) == (3, line)


@pytest.mark.integration
def test_a_host_that_does_not_exist_is_one_line() -> None:
    result = ringslice("train", "ROOT", "--hosts", "localhost:1,nowhere.invalid:1")
    failed(result, 3, "--hosts: nowhere.invalid (ssh: Could not resolve hostname")


@pytest.mark.integration
def test_a_process_of_the_shell_that_it_took_the_place_of_lives_on(tmp_path: Path) -> None:
    """As one of a container's entry point, which is then its child."""
    script = f"sleep 100 > /dev/null 2>&1 & echo $! > {tmp_path}/pid; exec ringslice train {tmp_path}/none"
    failed(run("bash", "-c", script, cwd=tmp_path), 2, "none")
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_lines_of_torchrun_are_kept_off() -> None:
    """But not a traceback of a rank."""
    lines = "".join(TORCH_LINES.splitlines(keepends=True)[:3])
    assert shown_of(TORCHRUN, TORCH_LINES.format(status=2)) == (2, lines)
    killed = f"{lines}ringslice: error: rank 0 was killed (SIGSEGV)\n"
    assert shown_of(TORCHRUN, TORCH_LINES.format(status=-11)) == (139, killed)


def test_lines_of_ours_are_bare_and_an_ending_comes_once() -> None:
    for last in ("error: z", "interrupted; z", "error: rank 0 on h, epoch 1, step 2 (reading x at offset 3): z"):
        again = last.replace("rank 0 on h, epoch 1, step 2", "rank 1 on h, epoch 1, step 1")
        text = f"[0] x\n[worker 1] y\n[0] ringslice: {last}\n[1] ringslice: {again}\n"
        assert shown_of(LAUNCH, text, 2) == (2, f"x\n[worker 1] y\nringslice: {last}\n")


def test_what_follows_from_the_end_of_another_rank_is_shown_if_there_is_nothing_else() -> None:
    cause, interruption = "[0] ringslice: error: x\n", "[2] ringslice: error: interrupted; z\n"
    first, second = (f"[1] ringslice: error: step {number}: {LOST}\n" for number in (1, 2))
    assert shown_of(LAUNCH, first + cause + second + interruption, 1) == (1, cause[4:])
    assert shown_of(LAUNCH, first + second, 3) == (3, first[4:])


def test_wrong_use_is_refused_before_anything_is_started() -> None:
    failed(ringslice_here("train", "ROOT", "--strategy", "ring"), 2, "'ring' is not one of 'horovod', 'mirrored'")
    failed(ringslice_here("train", "ROOT", "--ranks", 0), 2, "Invalid value for '--ranks': 0")
    failed(
        ringslice_here("train", "ROOT", "--ranks", 100_000), 2, "100000 processes or replicas are more than 16 for each"
    )
    words = ("train", "ROOT", "--ranks", 100_000, "--strategy", "parameter-server")
    failed(ringslice_here(*words), 2, "100002 processes or replicas are more than 16 for each CPU")
    failed(ringslice_here("train", "ROOT", "--servers", 2), 2, "--servers 2 is for --strategy parameter-server")
    failed(ringslice_here("train", "ROOT", "--hosts", "a,b"), 2, "--hosts 'a,b' is not a list of hosts")
    for command, script in (("train", "main"), ("evaluate", "evaluate")):
        hosts = ringslice_here(command, "ROOT", "--hosts", "a:2,b:2", "--strategy", "ddp")
        failed(hosts, 2, "--hosts is for --strategy horovod, not for ddp. Start on each host: torchrun --nnodes 2 ")
        assert f"-- train/{script}.py --strategy ddp" in hosts.stderr
    failed(ringslice_here("train", "ROOT", "--hosts", "a:1", "--ranks", 2), 2, "more than --hosts a:1 has (1)")
    failed(ringslice_here("train", "ROOT", "--strategy", "ddp"), 3, "torch is not installed in")


def test_convert_weights_hands_its_options_on(digits_root: Path) -> None:
    words = ("convert-weights", "--to", "x", digits_root)
    failed(ringslice_here(*words, "--name", "nope"), 2, "no slices called 'nope'")
    failed(ringslice_here(*words, "--run", "absent"), 2, "absent has no finished checkpoint; give --run NAME")
    failed(ringslice_here(*words, RINGSLICE_CHECKPOINT="worst"), 2, "'worst' is not one of 'newest', 'best'")
    failed(ringslice_here(*words[:3], RINGSLICE_DATA="nowhere"), 2, "nowhere")
    failed(convert_here("--data", digits_root, "--name", "nope", RINGSLICE_TO="x"), 2, "no slices called 'nope'")


def test_json_is_asked_for_by_an_option_or_a_variable() -> None:
    assert is_json(["--json"], {})
    assert not is_json([], {})
    assert [is_json([], {"RINGSLICE_JSON": value}) for value in ("1", "0", "")] == [True, False, False]


def test_an_export_or_an_evaluation_in_several_processes_is_refused(tmp_path: Path) -> None:
    """Before any of them waits for the others."""
    workers = json.dumps({"cluster": {"worker": ["h1:1", "h2:1"]}, "task": {"type": "worker", "index": 0}})
    cluster = {"chief": ["h1:1"], "worker": ["h2:1"], "ps": ["h3:1"]}
    for variables in (
        {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2"},
        {"HOROVOD_LOCAL_RANK": "0", "HOROVOD_LOCAL_SIZE": "2"},
        {"TF_CONFIG": workers},
        {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "chief", "index": 0}})},
    ):
        failed(export_here("--data", tmp_path, cwd=tmp_path, **variables), 2, "train/export.py is one process: start")
    words = ("--data", tmp_path, "--strategy", "multi-worker-mirrored")
    failed(evaluate_here(*words, TF_CONFIG=workers), 2, "TF_CONFIG has several workers, and an evaluation is one")


def test_scripts_that_need_tensorflow_name_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    for name in ("exporter", "predictor"):
        monkeypatch.delitem(sys.modules, f"train.serving.{name}", raising=False)
    line = "tensorflow is not installed in {} ({} needs it). Run: pip install 'ringslice[train]'"
    failed(call_command(export_command, "x", "--data", tmp_path), 3, line.format(sys.prefix, "train/export.py"))
    (tmp_path / "image.png").touch()
    monkeypatch.setattr(files, "fetch_export", lambda place: nullcontext((tmp_path, {})))
    predict = call_command(predict_command, "x", tmp_path, tmp_path / "image.png")
    failed(predict, 3, line.format(sys.prefix, "train/predict.py"))


def test_an_option_with_its_value_is_passed_on() -> None:
    """An h in it is not a request for help."""
    for command, word in product(start_command.commands.values(), ("-oh_out", "-ohdfs://x/y", "-nph")):
        assert command.make_context("x", ["root", word]).params["words"] == ("root", word)
        with pytest.raises(click.exceptions.Exit):
            command.make_context("x", ["root", word, "-h"])


def test_evaluation_takes_the_framework_of_a_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable is for train and evaluate alike."""
    for strategy, evaluation in (("pipeline", "ddp"), ("parameter-server", "horovod")):
        monkeypatch.setenv("RINGSLICE_STRATEGY", strategy)
        assert start_command.commands["evaluate"].make_context("evaluate", ["root"]).params["strategy"] == evaluation


START = """
import sys
from etl.entry_point import end_process, run_reporting
from train.start import Launcher, Ranks
launcher = Launcher([sys.executable, *sys.argv[2:]], Ranks("promote.py", sys.argv[1]), as_json=False)
end_process(run_reporting(lambda: launcher.run()))
"""
BEGIN = "import os, signal, sys, time"  # of what is launched, and interrupts the process that started it
IGNORE = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
INTERRUPT = "os.kill(os.getppid(), signal.SIGINT); time.sleep({})"
SUMMARY = "print('[0] promote: done  ')"
AWAIT = "while 'promote: done' not in open(sys.argv[1]).read(): time.sleep(0.01)"  # until it was forwarded
ENDED = "ringslice: error: {}.py ended before its work was done: the code of --model may have ended it\n"
AGAIN = "ringslice: interrupted; if champion.json is as before, run it again\n"


@pytest.mark.integration
def test_an_interrupt_is_reported_unless_the_work_was_done(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for strategy, steps, status, line in (
        ("mirrored", [INTERRUPT.format(60)], 130, AGAIN),  # before it has handlers
        ("mirrored", [IGNORE, SUMMARY, INTERRUPT.format(1)], 0, ""),  # at its end
        ("mirrored", [IGNORE, INTERRUPT.format(1), "os._exit(130)"], 130, ""),  # it has reported that
        ("multi-worker-mirrored", [INTERRUPT.format(60)], 130, AGAIN),
        ("multi-worker-mirrored", [SUMMARY, AWAIT, INTERRUPT.format(1), "os._exit(1)"], 1, ""),
        ("multi-worker-mirrored", ["os._exit(0)"], 1, ENDED.format("promote")),  # it was not interrupted
    ):
        words = ("python", "-c", START, strategy, "-u", "-c", "\n".join([BEGIN, *steps]), log)
        with spawn(*words, log=log, PYTHONPATH=str(REPOSITORY)) as process:
            assert process.wait(PATIENCE_S) == status, log.read_text()
        assert log.read_text().removeprefix("promote: done  \n") == line


def torch_ringslice(*words: object) -> Finished:
    return in_torch("python", "-m", "mapreduce.cli", *words)


@pytest.mark.integration
def test_the_code_of_a_model_neither_ends_a_run_unnoticed_nor_prints_into_the_summary(root: Path) -> None:
    model = "tests.lib.torch_ranks.tiny:{}".format
    words = ("train", root, "--strategy", "ddp", "--max-steps", 1, "--json", "--model")
    failed(torch_ringslice(*words, model("leaving")), 1, ENDED.format("main").rstrip())
    failed(torch_ringslice(*words, model("exiting")), 1, "the code of --model ended this process (SystemExit(0))")
    assert json.loads(succeeded(torch_ringslice(*words, model("printing"))).stdout)["steps"] == 1


OURS = "ringslice train"  # what lines of the training begin with; on a busy machine there are some within an epoch, too
RING = 0.15  # more bytes than the gradient's: of what the ranks agree on, and of heads


@pytest.mark.integration
@pytest.mark.parametrize(("strategy", "start"), [("horovod", ringslice), ("ddp", torch_ringslice)])
def test_ranks_train(strategy: str, start: Callable[..., Finished], root: Path) -> None:
    """Standard output is the summary, and the status that of the first rank that failed. In a ring of n ranks, each
    sends and receives 2 (n - 1) / n of the gradient's bytes in a step.
    """
    words = ("train", root, "--strategy", strategy, "--ranks", 2, "--model", "mlp", "--max-steps", 3, "--json")
    finished = succeeded(start(*words, "--run", "one"))
    summary = json.loads(finished.stdout)
    assert (summary["ranks"], summary["steps"], "test_accuracy" in summary) == (2, 3, True)
    assert all(line.startswith(OURS) for line in finished.stderr.splitlines()), finished.stderr
    parameters = int(re.search(r"mlp of ([\d,]+) parameters", finished.stderr)[1].replace(",", ""))  # type: ignore[index]
    assert bytes_per_step(root / "runs/one") == pytest.approx([4 * parameters] * 4, rel=RING)
    failed(start(*words, "--nonsense"), 2, "No such option '--nonsense'")


@pytest.mark.integration
@pytest.mark.parametrize(
    ("strategy", "number"),
    [
        ("ddp", signal.SIGTERM),
        *(
            pytest.param(*each, marks=pytest.mark.chaos)
            for each in (("horovod", signal.SIGKILL), ("horovod", signal.SIGINT), ("ddp", signal.SIGKILL))
        ),
    ],
)
def test_nothing_stays(strategy: str, number: signal.Signals, root: Path, tmp_path: Path) -> None:
    """A killed rank is named; Ctrl-C, for all, and SIGTERM, for the first process, end every process."""
    if strategy == "ddp":
        require_torch()
    python = BIN / "python" if strategy == "ddp" else "python"
    words = ("train", root, "--strategy", strategy, "--ranks", 2, "--model", "mlp", "--epochs", 500, "--run", "long")
    log = tmp_path / "log"
    with spawn(python, "-m", "mapreduce.cli", *words, log=log, PYTHONPATH=str(REPOSITORY)) as process:
        wait_until(lambda: bool(metric_lines(root / "runs/long")), process)
        if number == signal.SIGKILL:
            os.kill(rank_1(str(log)), number)
        else:
            (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
        status = process.wait(120)
        assert not marked(str(log))
    lines = [line for line in log.read_text().splitlines() if not line.startswith(OURS)]
    if number == signal.SIGKILL:
        assert (status, lines[-1]) == (137, "ringslice: error: rank 1 was killed (SIGKILL)"), log.read_text()
    else:
        assert (status, len(lines)) == (130, 1) and lines[0].startswith("ringslice: interrupted; "), log.read_text()


def rank_1(mark: str) -> int:
    """The process that trains as rank 1."""
    for process in marked(mark):
        folder = Path(f"/proc/{process.pid}")
        words, variables = ((folder / name).read_bytes().split(b"\0") for name in ("cmdline", "environ"))
        is_script = any(word.endswith(b"train/main.py") for word in words[:3])
        if is_script and {b"HOROVOD_RANK=1", b"RANK=1"} & set(variables):
            return process.pid
    raise AssertionError("there is no rank 1")


@pytest.mark.integration
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


@pytest.mark.chaos
def test_a_rank_that_comes_late_is_waited_for(root: Path) -> None:
    """Longer than for --stall-timeout: on a busy machine, TensorFlow is loaded for minutes."""
    late = ("sh", "-c", 'test "$HOROVOD_RANK" = 0 || sleep 60; exec "$@"', "sh")
    words = ("train/main.py", "--data", root, "--model", "mlp", "--max-steps", 3, "--json")
    output = json.loads(succeeded(horovodrun(2, *late, *words)).stdout.partition(":")[2])
    assert (output["ranks"], output["steps"]) == (2, 3)


@pytest.mark.integration
def test_a_run_on_one_group_reads_that_group_only(digits_root: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(digits_root / "normalized", root / "normalized")
    shard_here(root, "--workers", 4, "--groups", 2, "--slices", 4)
    words = ("--data", root, "--model", "mlp", "--epochs", 1, "--audit")
    failed(train_here(*words, "--group", 2), 2, "--group 2: these slices have the groups 0 to 1")
    succeeded(train_here(*words, "--group", 1, "--run", "second"))
    output = json.loads((root / "slices/default/manifest.json").read_text())["splits"]["train"]["groups"][1]
    rows = pq.read_table(root / "slices/default/examples.parquet", columns=["key", "slice"]).to_pylist()
    keys = committed_keys(root / "runs/second", 1)
    assert sorted(keys) == sorted(row["key"] for row in rows if "/group-1/" in row["slice"])
    assert len(keys) == output["records"]
    evaluated = succeeded(evaluate_here("--data", root, "--run", "second", "--split", "train", "--json"))
    assert json.loads(evaluated.stdout)["examples"] == sum(row["slice"].startswith("train/") for row in rows)


@pytest.mark.chaos
@pytest.mark.parametrize("ranks", [1, 8])
def test_the_demo_reaches_its_accuracy_on_any_number_of_ranks(ranks: int, root: Path) -> None:
    succeeded(horovodrun(ranks, "train/main.py", "--data", root))
    result = json.loads((root / "runs/run-0001/result.json").read_text())
    assert result["result"]["test_accuracy"] >= 0.97


def test_each_way_is_measured_for_each_number_of_slices(digits_root: Path) -> None:
    words = ("read-bench", digits_root, "--seconds", 0.1, "--slices-at-once", "1,2,64", "--json")
    finished = succeeded(ringslice_here(*words))
    result = json.loads(finished.stdout)
    assert (result["records"], result["slices"]) == (1437, 8)
    measured = result["measurements"]
    assert [(each["read"], each["slices_at_once"]) for each in measured] == [(way, n) for way in WAYS for n in (1, 2)]
    assert all(each["mb_per_s"] > 0 and each["cpu_s_per_gb"] > 0 for each in measured)
    assert [bool(each["records_per_s"]) for each in measured] == [False, False, True, True, True, True]
    assert "Exception" not in finished.stderr
    failed(ringslice_here("read-bench", digits_root, "--slices-at-once", 64), 2, "has 8 training slices")


def test_people_get_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    rates = [Rate("raw", 1, 3e9, None, 2.0, 1.5), Rate("records", 8, 2e9, 50_000, 2.5, 4.0)]
    show("/data/flowers/slices/default", {"records": 100_000}, rates, as_json=False)
    rows = [line.replace("│", " ").split() for line in capsys.readouterr().out.splitlines()]
    assert ["raw", "1", "1,500.0", "-", "0.5"] in rows
    assert ["records", "8", "800.0", "20,000", "2.0"] in rows


def test_a_slice_that_is_missing_is_named(digits_root: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(digits_root / "slices/default", tmp_path / "default")
    (folder / "train/train-00003-of-00008.tfrecord").unlink()
    manifest = Manifest.from_json(json.loads((folder / "manifest.json").read_text()))
    for way in WAYS:
        with pytest.raises(DataError, match=r"train-00003-of-00008\.tfrecord is missing"):
            Throughput(open_place(str(folder)), manifest, "train", seconds=10).measure(way, 1)
