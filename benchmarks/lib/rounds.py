"""Measure several ways in turns."""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

T = TypeVar("T")


def rotated(names: Iterable[str], number: int) -> list[str]:
    """The names in the order of round ``number``: each round starts with another one."""
    found = list(names)
    first = number % len(found)
    return found[first:] + found[:first]


def take_turns(ways: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """Call each way once per round; the values by way, in the order of the rounds."""
    found: dict[str, list[T]] = {name: [] for name in ways}
    for number in range(rounds):
        for name in rotated(ways, number):
            found[name].append(ways[name]())
    return found
