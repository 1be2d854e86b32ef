"""What all ranks must have alike before they begin: the same versions, the same settings, the same slices."""

import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from typing import Any

import horovod.tensorflow as hvd

from etl.errors import EnvironmentFailure, RingsliceError, UsageError
from train.config.settings import Settings
from train.parallel.strategy import Strategy
from train.runs.folder import Dataset
from train.tf_backend.devices import VISIBLE, take_device

PACKAGES = ("ringslice", "tensorflow", "tensorflow-cpu", "keras", "horovod", "numpy")


def require_agreement(
    strategy: Strategy, settings: Settings, dataset: Dataset, begun: bool = False
) -> list[dict[str, Any]]:
    """Raise UsageError where ranks differ in their settings or see other slices, EnvironmentFailure where they differ
    in their versions or kind of device, lack a device or share a GPU: on every rank, and rank 0 tells.

    Returns what the ranks have told of themselves, by rank.

    Where rank 0 has ``begun`` the run in a ring before, those that differ do not join: they alone raise
    EnvironmentFailure.
    """
    told = strategy.gather(
        {
            "host": platform.node(),
            "versions": versions(),
            "settings": settings.compared(),
            "slices": fingerprint_here(dataset),
            "device": asdict(take_device(settings.device)),
            "has_nccl": bool(hvd.nccl_built()),
            "begun": begun,
        }
    )
    if told[0]["begun"]:
        error = disagreement(told, strategy.rank, dataset)
        if error is not None:
            raise EnvironmentFailure(f"{error}; it does not join")
        return told
    for rank in range(len(told)):
        error = disagreement(told, rank, dataset)
        if error is not None:
            error.told = strategy.rank != 0
            raise error
    return told


def disagreement(told: Sequence[dict[str, Any]], rank: int, dataset: Dataset) -> RingsliceError | None:
    """What is wrong with a rank, or differs from rank 0; None where nothing is. Pure."""
    first, other = told[0], told[rank]
    who = f"rank {rank} on {other['host']}"
    if (error := device_disagreement(told, rank)) is not None:
        return EnvironmentFailure(f"{who}{error}")
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


def device_disagreement(told: Sequence[dict[str, Any]], rank: int) -> str | None:
    """What is wrong with a rank's device, or differs from that of rank 0, or is another rank's too; else None. Pure."""
    own, first = told[rank]["device"], told[0]["device"]
    if own["lacks"]:
        return f": {own['lacks']}"
    if bool(own["name"]) != bool(first["name"]):
        names = f"{own['name'] or 'the CPU'}, rank 0 on {first['name'] or 'the CPU'}"
        return f" computes on {names}; give every rank a GPU, or give --device cpu"
    if transport(told[rank]) != transport(told[0]):
        ways = f"{transport(told[rank])}, rank 0 by {transport(told[0])}"
        return f" reduces gradients by {ways}; install the same Horovod on every host"
    for before in range(rank):
        if own["uuid"] and told[before]["device"]["uuid"] == own["uuid"]:
            return (
                f" has the same GPU as rank {before} ({own['name']}, UUID {own['uuid']}); start one rank for each GPU,"
                f" and let ${VISIBLE} show them all, or one of its own to each rank"
            )
    return None


def transport(told: dict[str, Any]) -> str:
    """What carries the gradients of a rank: NCCL, if they are on a GPU and this Horovod has it."""
    return "NCCL" if told["device"]["name"] and told["has_nccl"] else "Gloo"


def describe_devices(told: Sequence[dict[str, Any]]) -> list[str]:
    """The devices of all ranks and what carries their gradients; then what keeps GPUs from being used. Pure."""
    ring = [transport(told[0])] if len(told) > 1 else []
    hosts = len({each["host"] for each in told})
    devices = [each["device"] for each in told]
    lines = [f"{counted(len(told), 'rank')} on {counted(hosts, 'host')}: {', '.join([*device_names(devices), *ring])}"]
    if devices[0]["name"] and ring == ["Gloo"]:
        lines.append("gradients go through host memory, because this Horovod has no NCCL; run: make install GPU=1")
    skipped = {each["host"]: each["device"]["skipped"] for each in told if each["device"]["skipped"]}
    return lines + [f"{host} has a GPU that is not used ({reason})" for host, reason in skipped.items()]


def device_names(devices: Sequence[dict[str, Any]]) -> list[str]:
    """The names of the GPUs, with their ranks if there are several names; or the CPU with its cores. Pure."""
    if not devices[0]["name"]:
        cores = [device["cores"] for device in devices]
        least = f"{min(cores)} to " if min(cores) < max(cores) else ""
        return [f"CPU ({least}{counted(max(cores), 'core')} each)"]
    runs = [(name, list(ranks)) for name, ranks in groupby(range(len(devices)), lambda rank: devices[rank]["name"])]
    if len(runs) == 1:
        return [runs[0][0]]
    return [f"{name} (rank {ranks[0]}{f' to {ranks[-1]}' if ranks[1:] else ''})" for name, ranks in runs]


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


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
