"""Start of a rank: take its cores, then import TensorFlow."""

import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

OPTIONAL = ("matplotlib", "sklearn")  # Keras draws and wraps with them where they are installed, and we do not


@contextmanager
def loading() -> Iterator[None]:
    """What a rank does around its first import of TensorFlow: take its cores, keep TensorFlow's greetings back.

    Keras goes without what it loads for others than us, a quarter of the time.
    """
    claim_cores(int(os.environ.get("HOROVOD_LOCAL_RANK", "0")), int(os.environ.get("HOROVOD_LOCAL_SIZE", "1")))
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with hushed(), without(OPTIONAL):
        yield


@contextmanager
def without(packages: Iterable[str]) -> Iterator[None]:
    """Let imports of these packages fail for a while; those that are loaded already stay."""
    hidden = set(packages) - set(sys.modules)
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type] # None: see the reference of the import system
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


@contextmanager
def hushed() -> Iterator[None]:
    """Keep standard error back while TensorFlow loads, for it greets every rank with lines that no setting turns off.

    What was kept back is told after all where loading fails.
    """
    error_stream = os.dup(2)
    with tempfile.TemporaryFile() as kept:
        os.dup2(kept.fileno(), 2)
        try:
            yield
        except BaseException:
            kept.seek(0)
            os.write(error_stream, kept.read())
            raise
        finally:
            os.dup2(error_stream, 2)
            os.close(error_stream)


def claim_cores(local_rank: int, local_size: int) -> None:
    """Pin this rank to its own cores, and give its thread pools as many threads as it has cores.

    Ranks that share cores without a budget start a pool for all cores each, and crawl.
    """
    cores = sorted(os.sched_getaffinity(0))
    own = cores_of(cores, local_rank, local_size)
    os.sched_setaffinity(0, own)
    for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS"):
        os.environ.setdefault(name, str(len(own)))


def cores_of(cores: list[int], local_rank: int, local_size: int) -> list[int]:
    """The cores of one of ``local_size`` ranks: equal shares, or one each in turn where ranks outnumber cores."""
    if local_size >= len(cores):
        return [cores[local_rank % len(cores)]]
    return cores[len(cores) * local_rank // local_size : len(cores) * (local_rank + 1) // local_size]
