"""Finds the function that builds the model which --model names; it imports the module of a user's own model."""

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from etl.errors import UsageError

# train/, which Python puts first on the path of train/main.py: modules of its names, such as model, are the user's.
_OWN_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

ImageShape = tuple[int, int, int]  # height, width, channels
Builder = Callable[[ImageShape, int], Any]  # the second argument is the number of classes


def find_builder(name: str, known: Mapping[str, Builder]) -> Builder:
    """The builder called ``name``: one of the ``known`` ones, or ``module:function``, also in the current folder.

    Raises UsageError if there is none.
    """
    if name in known:
        return known[name]
    module, separator, function = name.partition(":")
    if not separator or not all(each.isidentifier() for each in (*module.split("."), function)):
        raise UsageError(f"--model {name!r}: give {', '.join(known)}, or module:function for your own")
    path = sys.path.copy()
    sys.path[:] = [os.getcwd(), *(each for each in path if each != _OWN_FOLDER)]
    try:
        imported = importlib.import_module(module)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"--model {name!r}: {error}") from None
    finally:
        sys.path[:] = path
    builder = getattr(imported, function, None)
    if builder is None:
        raise UsageError(f"--model {name!r}: {getattr(imported, '__file__', module)} has no {function!r}")
    if not callable(builder):
        raise UsageError(f"--model {name!r} is not a function")
    try:
        inspect.signature(builder).bind("shape", "classes")
    except TypeError as error:
        raise UsageError(
            f"--model {name!r}: {error}; give a function of an image's shape and the number of classes"
        ) from None
    return builder


def misfit(name: str, shape: ImageShape, error: Exception) -> UsageError:
    """What to raise if the model called ``name`` cannot be built for pictures of ``shape``, because of ``error``."""
    size = "x".join(map(str, shape))
    return UsageError(
        f"--model {name!r} cannot be built for pictures of {size} (height x width x channels):"
        f" {' '.join(str(error).split()).rstrip('.')}; give another --model, or larger pictures:"
        " a larger --crop, or ringslice normalize with a larger --size"
    )
