"""Ways of training in parallel: which processes take part, and how they sum gradients.

What a framework computes on one process belongs in `train.tf_backend` and `train.torch_backend`; the loop is in
`train.loop`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from etl.slices.manifest import Manifest
from train.config.settings import Settings
from train.parallel.collective import Collective
from train.parallel.devices import Device
from train.parallel.trainer import Trainer
from train.runs.metrics import Line
from train.runs.position import Position
from train.runs.run import Run


class Strategy(ABC):
    """``collective`` has the processes that run the loop together.

    If it ``is_elastic``, ranks come and go: the run goes on from the last commit, which each rank has in memory.
    """

    collective: Collective
    is_elastic = False
    _device: Device  # of this rank

    def device(self, settings: Settings) -> dict[str, Any]:
        """The device of this rank, and what carries its gradients, as `train.runs.consistency` compares them."""
        del settings
        return {"device": asdict(self._device), "has_nccl": True}

    @abstractmethod
    def make_trainer(self, settings: Settings, manifest: Manifest) -> Trainer:
        """The model and optimizer of the settings' recipe at their first weights."""

    @property
    def data_rank(self) -> int:
        """Which share of the slices it reads, from 0. Processes that have parts of one model read the same."""
        return self.collective.rank

    @property
    def data_size(self) -> int:
        """The number of shares."""
        return self.collective.size

    @property
    def is_counted(self) -> bool:
        """True if the sums and the keys of this process count: on one of those that read the same share."""
        return True

    @property
    def replicas(self) -> int:
        """Copies of the model, over all processes."""
        return self.data_size

    @property
    def earlier(self) -> Run | None:
        """Elastic: the run that this process took part in with other ranks before; None if there is none."""
        return None

    def after_step(self) -> None:  # noqa: B027 # only an elastic run counts
        """Elastic: count a step, which is lost if a rank is lost before the next commit."""

    def is_due(self, position: Position) -> bool:
        """Elastic: True if a commit is due after this step."""
        del position
        return False

    def commit(self, run: Run, position: Position, trainer: Trainer, lines: list[Line]) -> None:
        """Elastic: keep all this in memory, to go on from. Raises HostsChanged, on all ranks, if ranks come or go.

        ``lines`` are the metrics that are not written yet; those that are written are removed from it.
        """
        del run, position, trainer, lines

    def restore(self, trainer: Trainer, log: Callable[[str], None]) -> tuple[Position, list[Line]] | None:
        """Elastic: the newest commit of any rank, whose state all ranks have then; None if no rank has one."""
        del trainer, log
        return None
