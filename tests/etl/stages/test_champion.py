"""The record of the champion; tests/test_faults.py has any call of storage fail while it is replaced."""

from collections.abc import Callable
from pathlib import Path

import pytest

from etl.errors import DataError, EnvironmentFailure, UsageError
from etl.slices.prune import KeptRuns, remove_runs
from etl.stages.champion import Promoted, champion_file, publish_champions, read_champion, read_champions
from etl.stages.lease import BusyError, leased
from etl.storage.place import Place, open_place

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
    with leased(root / "runs/_work", "a prune"), pytest.raises(BusyError, match="ringslice promote on"):
        publish_champions(root, [], [FIRST])


@pytest.mark.parametrize("damage", [lambda text: text.replace("first", "other"), lambda _: "", lambda _: "[]"])
def test_an_edited_record_is_refused(damage: Callable[[str], str], tmp_path: Path) -> None:
    root = open_place(str(tmp_path))
    publish_champions(root, [], [FIRST])
    file = Path(champion_file(root).path)
    file.write_text(damage(file.read_text()))
    with pytest.raises(DataError, match=r"is damaged, or of another version|is not JSON"):
        read_champions(root)
