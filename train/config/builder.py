"""Finds the function that builds the model which --model names; it imports the module of a user's own model."""

import importlib
import inspect
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from etl.errors import UsageError, explain

# train/, which Python puts first on the path of train/main.py: modules of its names, such as model, are the user's.
_OWN_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# What Python raises for mistakes in a user's code. Frameworks raise other errors for a lack of memory.
_MISTAKES = ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError, SyntaxError, TypeError
_LIBRARIES = (_OWN_FOLDER, "<frozen ", *(sysconfig.get_path(each) for each in ("stdlib", "purelib", "platlib")))

ImageShape = tuple[int, int, int]  # height, width, channels
Builder = Callable[[ImageShape, int], Any]  # the second argument is the number of classes


def find_builder(name: str, known: Mapping[str, Builder]) -> Builder:
    """The builder called ``name``: one of the ``known`` ones, or ``module:function``, also in the current folder.

    Raises UsageError if there is none, or its module has a mistake.
    """
    if name in known:
        return known[name]
    module, separator, function = name.partition(":")
    if not separator or not all(each.isidentifier() for each in (*module.split("."), function)):
        raise UsageError(f"--model {name!r}: give {', '.join(known)}, or module:function for your own")
    try:
        with name_mistakes(name):
            imported = importlib.import_module(module)
    except ValueError as error:
        raise _mistake(name, error) from error
    builder = getattr(imported, function, None)
    if builder is None:
        raise UsageError(f"--model {name!r}: {getattr(imported, '__file__', module)} has no {function!r}")
    if not callable(builder):
        raise UsageError(f"--model {name!r} is not a function")
    try:
        inspect.signature(builder).bind("shape", "classes")
    except (TypeError, ValueError) as error:  # ValueError: of a builtin function
        raise UsageError(
            f"--model {name!r}: {error}; give a function of an image's shape and the number of classes"
        ) from None
    return builder


@contextmanager
def name_mistakes(name: str) -> Iterator[None]:
    """Surround what runs the code of the model called ``name``: a mistake in a user's becomes a UsageError of one line.
    A user's imports modules of the current folder, also in its functions.

    What the machine lacks, such as memory, is left as it is; so are ValueError and RuntimeError, which frameworks raise
    if shapes do not fit: see `misfit`.
    """
    path = sys.path.copy()
    if ":" in name:
        sys.path[:] = [os.getcwd(), *(each for each in path if each != _OWN_FOLDER)]
    try:
        yield
    except _MISTAKES as error:
        if ":" not in name or explain(error) is not None:
            raise
        raise _mistake(name, error) from error
    finally:
        sys.path[:] = path


def _mistake(name: str, error: Exception) -> UsageError:
    """The line for an ``error`` in a user's module: where it is there, and what."""
    what = f"{type(error).__name__}: {error}"
    frames = [each for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith(_LIBRARIES)]
    if isinstance(error, SyntaxError) and error.filename is not None:
        file, number, what = error.filename, error.lineno, error.msg
    elif frames:
        file, number = frames[-1].filename, frames[-1].lineno
    else:  # as if there is no such module
        return UsageError(f"--model {name!r}: {error}")
    return UsageError(f"--model {name!r}: {os.path.basename(file)}, line {number}: {' '.join(what.split())}")


def misfit(name: str, shape: ImageShape, error: Exception) -> UsageError:
    """What to raise if the model called ``name`` cannot be built for pictures of ``shape``, because of ``error``."""
    size = "x".join(map(str, shape))
    return UsageError(
        f"--model {name!r} cannot be built for pictures of {size} (height x width x channels):"
        f" {' '.join(str(error).split()).rstrip('.')}; give another --model, or larger pictures:"
        " a larger --crop, or ringslice normalize with a larger --size"
    )
