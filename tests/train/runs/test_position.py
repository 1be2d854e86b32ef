"""How many epochs are over after so many more steps: exact at the end of one."""

from dataclasses import replace

import pytest

from train.reader.state import ReaderState
from train.runs.position import Position

TOTAL, RANKS, BATCH = 1_437, 2, 32
WHOLE = 23  # steps of an epoch
EPOCH_BEGIN = ReaderState("these", "train", 0, 1, 16, ((0, TOTAL),), RANKS, 1, BATCH)
TAKEN = EPOCH_BEGIN.after(7)
BY_OTHERS = TAKEN.shared(3, 1, BATCH).after(2)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("state", [EPOCH_BEGIN, TAKEN, BY_OTHERS])
def test_epochs_after_some_steps(state: ReaderState, drop_last: bool) -> None:
    state = replace(state, drop_last=drop_last)
    position = Position(100, state)
    left = state.steps.number - state.taken
    result = [position.epochs_after(steps, TOTAL, WHOLE) for steps in range(left + 2 * WHOLE + 1)]
    assert result[0] == pytest.approx(position.epochs_done(TOTAL))
    assert result == sorted(result)
    assert (result[left], result[left + WHOLE], result[left + 2 * WHOLE]) == (1, 2, 3)
    later = Position(100, replace(state, epoch=4))
    assert later.epochs_after(left, TOTAL, WHOLE) == 4
    assert later.epochs_after(1, TOTAL, WHOLE) == pytest.approx(3 + result[1])
