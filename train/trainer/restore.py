"""Takes a run up again from its newest checkpoint that is whole, if that is of the same training."""

from typing import Any

from etl.errors import UsageError
from train.checkpoints import store
from train.checkpoints.store import Checkpoint
from train.config.recipe import option_of
from train.tf_backend.variables import assign
from train.trainer.session import Session


def restore(session: Session) -> dict[str, Any]:
    """On rank 0, set the weights of the newest checkpoint that is whole; returns its position as JSON.

    The begin, where there is none. Raises UsageError where it is that of another training, DataError where all that
    are there are damaged.
    """
    session.monitor.local_phase("loading the checkpoint")
    require_resumable(session)
    restored = store.restore(session.run, session.attempts, session.monitor.progress)
    if restored is None:
        return session.begin().to_json()
    checkpoint, arrays = restored
    if not session.settings.resume:  # another trainer made it between our choice of this run and our claim
        raise UsageError(f"{session.run} is there already; give --resume to go on with it, or another --run")
    assign(session.groups, arrays, str(checkpoint.folder))
    return dict(checkpoint.marker["position"])


def require_resumable(session: Session) -> None:
    """Raise UsageError where the newest checkpoint, if there is one, is of another training."""
    newest = store.newest(session.run)
    if newest is not None:
        require_same_training(session, newest)


def require_same_training(session: Session, checkpoint: Checkpoint) -> None:
    """Raise UsageError, naming the first thing that differs, where the checkpoint is of another training."""
    marker, identity = checkpoint.marker, session.identity
    theirs, ours = marker["classes"], identity["classes"]
    if theirs != ours:
        first = next((name for name in [*theirs, *ours] if (name in theirs) != (name in ours)), None)
        which = f"{first!r} is in one of them only" if first is not None else "in another order"
        raise UsageError(
            f"{checkpoint.folder} was trained on {len(theirs)} classes, these slices have {len(ours)} ({which}); give"
            " --name of its slices, or another --run"
        )
    if marker["slices"] != identity["slices"]:
        raise UsageError(
            f"{checkpoint.folder} was trained on other slices ({marker['slices']}, now {identity['slices']}); give"
            " --name of its slices, or another --run"
        )
    for name, value in identity["settings"].items():
        if name != "decay_until" and marker["settings"].get(name) != value:  # which --decay-until may change
            raise UsageError(
                f"{checkpoint.folder} was trained with other settings: {option_of(name)} was"
                f" {marker['settings'].get(name)}, now {value}; give what it was trained with, or another --run"
            )
