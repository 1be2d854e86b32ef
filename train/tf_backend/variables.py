"""The variables of a model and its optimizer, as plain arrays by name, and back."""

from collections.abc import Mapping, Sequence
from typing import Any

from etl.errors import UsageError
from train.checkpoints.safetensors_file import Arrays

Groups = Mapping[str, Sequence[Any]]  # Keras variables by what they belong to


def snapshot(groups: Groups) -> dict[str, Arrays]:
    """Copies of the values that the variables have now."""
    return {
        group: {_name(number, each): each.numpy() for number, each in enumerate(variables)}
        for group, variables in groups.items()
    }


def assign(groups: Groups, arrays: Mapping[str, Arrays], source: str) -> None:
    """Set the variables to these values, which come from ``source``.

    Raises UsageError, before anything is set, if a name, a shape or a dtype is that of another model or optimizer.
    """
    for group, variables in groups.items():
        ours = {_name(number, each): (tuple(each.shape), str(each.dtype)) for number, each in enumerate(variables)}
        theirs = {name: (array.shape, str(array.dtype)) for name, array in arrays[group].items()}
        different = sorted(dict(ours.items() ^ theirs.items()))
        if different:
            name = different[0]
            raise UsageError(
                f"{source} is of another {group}: {name} is {_described(theirs.get(name))} there,"
                f" {_described(ours.get(name))} here; give the --model it was made with, or another --run"
            )
    for group, variables in groups.items():
        for number, each in enumerate(variables):
            each.assign(arrays[group][_name(number, each)])


def _name(number: int, variable: Any) -> str:
    return f"{number:04d}-{variable.name}"  # not its path, which counts the models that a process made before


def _described(kind: tuple[tuple[int, ...], str] | None) -> str:
    return "missing" if kind is None else f"{kind[1]} of shape {kind[0]}"
