"""What a framework provides to the loop: a trainer, and the results of its steps. Imports no framework."""

import hashlib
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from etl.errors import UsageError
from train.checkpoints.safetensors_file import Arrays
from train.reader.batches import RecordBatch


@dataclass(frozen=True)
class StepOfRank:
    """What one rank measured at one step; sums over its examples, and seconds."""

    step: int
    loss: float
    hits: float
    examples: float
    rate: float
    input_s: float
    compute_s: float
    reduce_s: float
    step_s: float
    time: str

    @classmethod
    def of(cls, step: int, rate: float, sums: Sequence[float], seconds: Sequence[float], time: str) -> Self:
        """``seconds`` are of input, computing, reducing, and the whole step; ``time`` is when it ended, of `now`."""
        loss, hits, examples = sums
        input_s, compute_s, reduce_s, step_s = (max(0.0, each) for each in seconds)  # a clock may be set back
        return cls(step, loss, hits, examples, rate, input_s, compute_s, reduce_s, step_s, time)

    @property
    def own_s(self) -> float:
        """Without waiting for the gradients of all ranks."""
        return max(0.0, self.step_s - self.reduce_s)

    @property
    def sums(self) -> tuple[float, float, float]:
        """Over this rank's examples: the losses, the hits, and the number of examples."""
        return self.loss, self.hits, self.examples


@dataclass(frozen=True)
class StepResult:
    """What one rank measured at a step, and the keys of its examples if they are audited.

    ``is_skipped``, equal on all ranks: the gradient was not finite, so the step was not taken.
    """

    measured: StepOfRank
    is_skipped: bool
    keys: Sequence[bytes] = ()


class Trainer(Protocol):
    """A model and its optimizer on one rank. A batch is whatever the framework's own batches are.

    If it ``is_divided``, each rank has a part of the model only, and all ranks must call `state` together.
    """

    is_divided: bool

    def train_batches(self, records: Iterator[RecordBatch], seed: int) -> Generator[Any, None, None]:
        """A decoded batch for each of ``records``, augmented by ``seed``. Raises what ``records`` raises."""
        ...

    def train_step(self, batch: Any, step: int, learning_rate: float) -> list[StepResult]:
        """Take the step after ``step`` steps; the result of the step before, if it is not known yet."""
        ...

    def finish_steps(self) -> list[StepResult]:
        """Wait for the last step; its result, if it is not known yet."""
        ...

    def evaluation_batches(self, records: Iterator[RecordBatch]) -> Generator[Any, None, None]:
        """A decoded batch for each of ``records``, as it is."""
        ...

    def evaluate_step(self, batch: Any) -> tuple[list[float], npt.NDArray[np.int64]]:
        """Sums of this batch's losses, hits and examples; the predicted classes, of shape (batch,)."""
        ...

    @property
    def learning_rate(self) -> float:
        """Of the last step."""
        ...

    @property
    def parameters(self) -> int:
        """The number of the model's weights."""
        ...

    @property
    def notes(self) -> list[str]:
        """Lines that a user should read before the first step."""
        ...

    def state(self) -> dict[str, Arrays]:
        """Copies of the weights and of the optimizer's variables, by name, in the groups "model" and "optimizer".

        Of the whole model, on rank 0 at least.
        """
        ...

    def load_state(self, state: Mapping[str, Arrays], source: str) -> None:
        """Set the variables of these groups on this rank; if the model is divided, with the next `broadcast_state`.

        Raises UsageError if ``source`` is of another model.
        """
        ...

    def broadcast_state(self, root: int = 0) -> None:
        """Give all ranks the state of rank ``root``."""
        ...

    def digests(self) -> list[tuple[str, str]]:
        """The path of each variable and the SHA-256 of its bytes, equal on all ranks that have the variable."""
        ...

    def first_not_finite(self) -> str:
        """The path of the first variable that has a value which is not finite; equal on all ranks; empty if none."""
        ...


def require_same(source: str, group: str, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Raise UsageError if the variables of ``source`` have other names or kinds than the trainer's in this group."""
    for name in sorted(dict(ours.items() ^ theirs.items())):
        there, here = (found.get(name, "missing") for found in (theirs, ours))
        raise UsageError(
            f"{source} is of another {group}: {name} is {there} there, {here} here; give the --model it was made with,"
            " or another --run"
        )


def digests_of(arrays: Iterable[tuple[str, npt.NDArray[Any]]]) -> list[tuple[str, str]]:
    """The name of each array and the SHA-256 of its bytes."""
    return [(name, hashlib.sha256(np.ascontiguousarray(each).tobytes()).hexdigest()) for name, each in arrays]
