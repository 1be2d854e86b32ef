"""Which runs go, and how: whole, also where a prune before was killed; on local files and HDFS."""

from etl.slices.prune import KeptRuns, choose_runs, remove_runs, run_names
from etl.stages.champion import publish_champions
from etl.stages.lease import Lease
from etl.storage.atomic import publish_bytes
from etl.storage.place import Place, json_bytes


def make_run(root: Place, name: str, finished: str | None) -> None:
    run, staging = root / "runs" / name, (root / "staging").make_folder()
    publish_bytes(run / "checkpoints" / "step-00000001" / "model.safetensors", staging, b"weights")
    if finished is not None:
        publish_bytes(run / "run.json", staging, json_bytes({"finished": finished}))


def test_the_newest_the_champions_and_those_at_work_stay(root: Place) -> None:
    for day, name in enumerate(("job-1", "job-2", "job-3", "job-4", "mine", "job-5")):
        make_run(root, name, f"2026-11-{day:02d}T00:00:00.000+00:00")
    make_run(root, "job-0", None)  # not finished, so as new as its folder
    publish_champions(root, [], [{"run": "job-2"}, {"run": "job-1"}])
    lease = Lease.take(root / "runs/job-3/_work", "a test")
    kept = KeptRuns(1, "job-")
    assert choose_runs(root, kept) == {
        "job-0": "among the newest",
        "mine": "its name does not begin with 'job-'",
        "job-3": "being trained",
        "job-2": "the champion",
        "job-1": "a champion before this one",
    }
    chosen_before = ["job-0", "job-1", "job-2", "job-3", "job-4", "job-5", "mine"]
    assert remove_runs(root, chosen_before, kept) == ["job-4", "job-5"]
    lease.release()
    assert run_names(root) == ["job-0", "job-1", "job-2", "job-3", "mine"]
    assert not (root / "runs/_work").exists()


def test_what_a_killed_prune_left_goes_with_the_next(root: Place) -> None:
    make_run(root, "job-1", None)
    publish_bytes(root / "runs/_work/driver-000001-ab/attempt/model.safetensors", root / "staging", b"weights")
    assert remove_runs(root, [], KeptRuns(0, "")) == []
    assert [info.base_name for info in (root / "runs").children()] == ["job-1"]
