"""Files that appear whole or not at all, on local files and on HDFS alike."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from etl.errors import EnvironmentFailure
from etl.storage.atomic import (
    TakenError,
    publish,
    publish_bytes,
    publish_stream,
    replace_bytes,
    replace_stream,
    withdraw,
)
from etl.storage.place import Place, open_place
from tests.etl.conftest import names_below

TAKEN_OVER = "was not written: another run has taken this stage over"


@pytest.fixture
def staging(root: Place) -> Place:
    return (root / "_work").make_folder()


def test_a_file_appears_whole_or_not_at_all(root: Place, staging: Place) -> None:
    with pytest.raises(RuntimeError, match="stop"), publish_stream(root / "final", staging) as output:
        output.write(b"half")
        assert not (root / "final").exists()
        raise RuntimeError("stop")
    assert names_below(root) == ["_work"]
    with publish_stream(root / "deep" / "final", staging) as output:
        output.write(b"who")
        output.write(memoryview(b"le"))
    assert (output.won, output.size_bytes) == (True, 5)
    assert (root / "deep" / "final").read_bytes() == b"whole"
    assert output.sha256 == (root / "deep" / "final").sha256()
    assert names_below(root) == ["_work", "deep", "deep/final"]


def test_the_second_attempt_loses_and_removes_its_own(root: Place, staging: Place) -> None:
    publish_bytes(root / "final", staging, b"same")
    assert not publish_bytes(root / "final", staging, b"same").won
    with pytest.raises(TakenError, match="other bytes"):
        publish_bytes(root / "final", staging, b"other")
    assert (root / "final").read_bytes() == b"same"
    root.filesystem.open_new((staging / "third").path).close()
    assert not publish(staging / "third", root / "final")
    assert names_below(root) == ["_work", "final"]


def test_a_folder_that_takes_no_files_is_reported_by_the_name_of_the_file() -> None:
    folder = open_place("/sys")  # not even of root's
    with pytest.raises(OSError) as raised:
        replace_bytes(folder / "page.html", folder, b"x")
    assert raised.value.filename == "/sys/page.html"


def test_of_many_attempts_at_once_one_wins(root: Place, staging: Place) -> None:
    barrier = Barrier(8)

    def attempt(number: int) -> bool:
        with publish_stream(root / "final", staging) as output:
            output.write(b"same")
            barrier.wait(30)
        return output.won

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(attempt, range(8))).count(True) == 1
    assert names_below(root) == ["_work", "final"]
    assert (root / "final").read_bytes() == b"same"


def test_a_file_is_replaced_in_one_step_or_stays(root: Place, staging: Place) -> None:
    for data in (b"", b"old"):
        replace_bytes(root / "file", staging, data)
        assert (root / "file").read_bytes() == data
    with pytest.raises(RuntimeError, match="stop"), replace_stream(root / "file", staging) as output:
        output.write(b"half")
        raise RuntimeError("stop")
    assert (root / "file").read_bytes() == b"old"
    with replace_stream(root / "file", staging) as output:
        output.write(b"ne")
        output.write(b"w")
    assert (root / "file").read_bytes() == b"new"
    assert (output.size_bytes, output.sha256) == (3, (root / "file").sha256())
    assert names_below(root) == ["_work", "file"]


def test_a_file_is_withdrawn_unless_its_owner_was_replaced(root: Place, staging: Place) -> None:
    replace_bytes(root / "deep" / "file", staging, b"old")
    for _ in range(2):
        withdraw(root / "deep" / "file", staging)
        assert names_below(root) == ["_work", "deep"]
    withdraw(root / "missing" / "file", staging)
    replace_bytes(root / "file", staging, b"old")
    staging.delete()
    for name in ("file", "missing"):
        with pytest.raises(EnvironmentFailure, match=f"{name} was not removed: another run has taken this stage over"):
            withdraw(root / name, staging)
    assert names_below(root) == ["deep", "file"]


@pytest.mark.parametrize("at_work", [False, True])
def test_who_was_replaced_publishes_nothing(at_work: bool, root: Place, staging: Place) -> None:
    """Its staging folder is gone: it stops, and makes no folder again."""
    with (
        pytest.raises(EnvironmentFailure, match=f"final {TAKEN_OVER}"),
        publish_stream(root / "final", staging) as output,
    ):
        output.write(b"begin")
        if at_work:
            staging.delete()
        output.write(bytes(3 << 20))
        staging.delete()
    assert names_below(root) == []
    for call in (replace_bytes, publish_bytes):
        with pytest.raises(EnvironmentFailure, match=TAKEN_OVER):
            call(root / "deep" / "final", staging, b"")
    assert names_below(root) == []


def test_a_folder_that_is_being_deleted_says_the_same(root: Place, staging: Place) -> None:
    """A local folder is deleted file by file: an attempt may be gone a moment before its folder is."""
    with (
        pytest.raises(EnvironmentFailure, match=f"final {TAKEN_OVER}"),
        publish_stream(root / "final", staging) as output,
    ):
        (attempt,) = staging.children()
        (staging / attempt.base_name).delete()
        output.write(b"late")
    assert names_below(root) == ["_work"]


def test_the_first_error_is_raised(root: Place, staging: Place) -> None:
    with pytest.raises(KeyError), publish_stream(root / "final", staging) as output:
        output.write(b"begin")
        staging.delete()  # so closing fails too
        raise KeyError("first")
    with pytest.raises(NotADirectoryError):
        publish_bytes(publish_bytes(root / "a", staging.make_folder(), b"").place / "b" / "c", staging, b"")
    assert names_below(root) == ["_work", "a"]
