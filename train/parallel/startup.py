"""Start of a rank: take its cores, then import TensorFlow."""

import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from etl.errors import EnvironmentFailure
from train.monitor.launcher import local_rank, local_size
from train.parallel.cores import claim_cores

OPTIONAL = ("matplotlib", "sklearn")  # Keras imports them if they are installed; we do not use them


@contextmanager
def prepare_import() -> Iterator[None]:
    """Surround a rank's first import of TensorFlow or PyTorch: claim its cores, and suppress what they log.

    Keras is loaded without optional packages that we do not use; they take a quarter of the time.
    """
    claim_cores(local_rank(), local_size())
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # what it logs of a rank that is lost, or cannot be reached
    with suppress_stderr(), hide_packages(OPTIONAL):
        yield


def not_installed(what: str, module: str) -> EnvironmentFailure:
    """What to raise if a strategy or a script needs a module that this environment lacks."""
    extra = "torch" if module == "torch" else "train"
    return EnvironmentFailure(
        f"{module} is not installed in {sys.prefix} ({what} needs it). Run: pip install 'ringslice[{extra}]'"
    )


@contextmanager
def require_framework(what: str) -> Iterator[None]:
    """Surround the import of the framework that a strategy or a script needs: raise EnvironmentFailure if it is not
    installed, or cannot load a library.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in ("tensorflow", "horovod", "torch"):
            raise
        raise not_installed(what, error.name) from error
    except ImportError as error:
        if not str(error.path).endswith(".so"):
            raise
        raise EnvironmentFailure(f"{what} cannot load a library: {error}. Install its package again") from error


@contextmanager
def hide_packages(packages: Iterable[str]) -> Iterator[None]:
    """Let imports of these packages fail for a while; those that are loaded already stay."""
    hidden = set(packages) - set(sys.modules)
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type] # None: see the reference of the import system
    try:
        yield
    finally:
        for name in hidden:
            sys.modules.pop(name, None)


@contextmanager
def suppress_stderr() -> Iterator[None]:
    """Suppress stderr while TensorFlow is imported, because no setting turns off all that it logs; replay it if the
    import fails.
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
