"""What all ranks must have alike before they begin: the same versions, the same settings, the same slices."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from etl.errors import EnvironmentFailure, RingsliceError, UsageError
from train.config.settings import Settings
from train.parallel.devices import take_device
from train.parallel.strategy import Strategy
from train.runs.folder import Dataset

PACKAGES = ("ringslice", "tensorflow", "tensorflow-cpu", "keras", "horovod", "numpy")


def require_agreement(strategy: Strategy, settings: Settings, dataset: Dataset, begun: bool = False) -> None:
    """Raise UsageError where ranks differ in their settings or see other slices, EnvironmentFailure where they differ
    in their versions or lack a device: on every rank, and rank 0 tells.

    Where rank 0 has ``begun`` the run in a ring before, those that differ do not join: they alone raise
    EnvironmentFailure.
    """
    told = strategy.gather(
        {
            "host": platform.node(),
            "versions": versions(),
            "settings": settings.compared(),
            "slices": fingerprint_here(dataset),
            "lacks": take_device(settings.device),
            "begun": begun,
        }
    )
    if told[0]["begun"]:
        error = disagreement(told[0], told[strategy.rank], strategy.rank, dataset)
        if error is not None:
            raise EnvironmentFailure(f"{error}; it does not join")
        return
    for rank, other in enumerate(told):
        error = disagreement(told[0], other, rank, dataset)
        if error is not None:
            error.told = strategy.rank != 0
            raise error


def disagreement(first: dict[str, Any], other: dict[str, Any], rank: int, dataset: Dataset) -> RingsliceError | None:
    """What is wrong with the ``other`` rank, or differs from the ``first``; None where nothing is. Pure."""
    who = f"rank {rank} on {other['host']}"
    if other["lacks"]:
        return EnvironmentFailure(f"{who}: {other['lacks']}")
    for name in sorted({**first["versions"], **other["versions"]}):
        ours, theirs = first["versions"].get(name), other["versions"].get(name)
        if ours != theirs:
            return EnvironmentFailure(
                f"{who} has {name} {theirs or 'not installed'}, rank 0 has {ours or 'none'}; install the same versions"
                " on every host"
            )
    for name, ours in first["settings"].items():
        if other["settings"].get(name) != ours:
            return UsageError(
                f"{who} was started with {name} {other['settings'].get(name)!r}, rank 0 with {ours!r}; start all ranks"
                " with the same options"
            )
    if other["slices"] != dataset.fingerprint:
        seen = f"other slices ({other['slices']})" if other["slices"] else "no finished slices"
        return UsageError(
            f"{who} sees {seen} at {dataset.folder}, rank 0 those of {dataset.fingerprint}; put the same slices on"
            " every host, or give a --data that all of them share"
        )
    return None


def versions() -> dict[str, str]:
    """Of what decides what is learned, here; ``$RINGSLICE_CODE`` is a user's own, of the model's code, say."""
    found = {"python": ".".join(platform.python_version_tuple()[:2])}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    if code := os.environ.get("RINGSLICE_CODE"):
        found["$RINGSLICE_CODE"] = code
    return found


def fingerprint_here(dataset: Dataset) -> str | None:
    """That of the slices as this rank sees them; None where it sees none."""
    stage = dataset.stage
    return stage.fingerprint() if stage.marker.exists() else None
