"""At most one trainer at work on a run: rank 0 holds the run's claim (`etl.stages.lease`) for all ranks."""

from collections.abc import Iterator
from contextlib import contextmanager

from etl.stages.lease import Claim
from etl.stages.stage import WORK_FOLDER
from etl.storage.place import Place, open_place
from train.monitor.monitor import Monitor
from train.parallel.strategy import Strategy


@contextmanager
def holding(run: Place, strategy: Strategy, monitor: Monitor) -> Iterator[Place]:
    """Hold ``run`` while the block runs; yields the folder that every rank writes to what it is about to publish.

    After the block nothing is left of it; after one that raises, or was killed, the next trainer takes the run over.

    Raises EnvironmentFailure where another trainer is at work on the run.
    """
    work = run / WORK_FOLDER
    claims: list[Claim] = []  # rank 0's one

    def take() -> str:
        monitor.local_phase("claiming the run")
        claims.append(Claim.take(work, f"train/main.py on {run}", monitor.progress))
        return claims[0].attempts.uri

    try:
        yield open_place(strategy.from_root(take))
    except BaseException:
        for claim in claims:
            claim.release()
        raise
    for claim in claims:
        claim.delete_work()
