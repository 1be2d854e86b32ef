"""The record of the champion, and which runs prune removes. tests/test_faults.py has any call of storage fail."""

from collections.abc import Callable
from pathlib import Path

import pytest

from etl.errors import DataError, EnvironmentFailure, UsageError
from etl.slices.prune import KeptRuns, choose_runs, remove_runs, run_names
from etl.stages.champion import Promoted, champion_file, publish_champions, read_champion, read_champions
from etl.stages.lease import BusyError, Lease, lease_folder
from etl.storage.atomic import publish_bytes
from etl.storage.place import Place, json_bytes, open_place

FIRST, SECOND, THIRD = [Promoted(run=name, accuracy=0.9) for name in ("first", "second", "third")]


def test_records_follow_each_other(root: Place) -> None:
    with pytest.raises(UsageError, match="has no champion; make one with: ringslice promote"):
        read_champion(root)
    publish_champions(root, [], [FIRST])
    publish_champions(root, [FIRST], [SECOND, FIRST])
    assert read_champions(root) == [SECOND, FIRST]
    with pytest.raises(EnvironmentFailure, match="was changed by another process meanwhile"):
        publish_champions(root, [FIRST], [THIRD, FIRST])
    assert read_champion(root) == SECOND
    assert [info.base_name for info in (root / "models").children()] == ["champion.json"]
    publish_champions(root, [SECOND, FIRST], [FIRST])
    assert read_champions(root) == [FIRST]


def test_no_run_is_promoted_while_runs_are_removed(root: Place) -> None:
    def check() -> None:
        with pytest.raises(BusyError, match="ringslice prune on"):
            remove_runs(root, ["first"], KeptRuns(0, ""))
        raise DataError("it is gone")

    with pytest.raises(DataError, match="it is gone"):
        publish_champions(root, [], [FIRST], check)
    assert read_champions(root) == []
    with lease_folder(root / "runs/_work", "a prune"), pytest.raises(BusyError, match="ringslice promote on"):
        publish_champions(root, [], [FIRST])


@pytest.mark.parametrize("damage", [lambda text: text.replace("first", "other"), lambda _: "", lambda _: "[]"])
def test_an_edited_record_is_refused(damage: Callable[[str], str], tmp_path: Path) -> None:
    root = open_place(str(tmp_path))
    publish_champions(root, [], [FIRST])
    file = Path(champion_file(root).path)
    file.write_text(damage(file.read_text()))
    with pytest.raises(DataError, match=r"is damaged, or of another version|is not JSON"):
        read_champions(root)


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
