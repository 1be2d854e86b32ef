"""What all ranks must have alike before they begin: the same versions, the same settings, the same slices."""

import hashlib
import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from pathlib import Path
from typing import Any

from etl.errors import EnvironmentFailure, RingsliceError, UsageError
from train.config.settings import Settings
from train.parallel.collective import Collective
from train.parallel.trainer import Trainer
from train.runs.folder import Dataset

PACKAGES = ("ringslice", "tensorflow", "tensorflow-cpu", "keras", "horovod", "torch", "numpy")
CODE = ("etl", "train")  # folders of what a rank runs


def require_agreement(
    settings: Settings, dataset: Dataset, collective: Collective, device: dict[str, Any], has_begun: bool = False
) -> list[dict[str, Any]]:
    """Raise UsageError if ranks differ in their settings or see other slices, EnvironmentFailure if they differ in
    their versions or kind of ``device``, lack a device or share a GPU: on every rank, and rank 0 reports it.

    If rank 0 ``has_begun`` the run in a ring before, those that differ do not join: they alone raise
    EnvironmentFailure. Returns the facts of the ranks, by rank.
    """
    own = {
        "host": platform.node(),
        "versions": versions(),
        "settings": settings.compared(),
        "slices": fingerprint_here(dataset),
        "has_begun": has_begun,
        **device,
    }
    facts = collective.gather_object(own)
    if facts[0]["has_begun"]:
        error = disagreement(facts, collective.rank, dataset)
        if error is not None:
            raise EnvironmentFailure(f"{error}; it does not join")
        return facts
    for rank in range(len(facts)):
        error = disagreement(facts, rank, dataset)
        if error is not None:
            error.is_reported = not collective.is_root
            raise error
    return facts


def disagreement(facts: Sequence[dict[str, Any]], rank: int, dataset: Dataset) -> RingsliceError | None:
    """What is wrong with a rank, or differs from rank 0; None if nothing is. Pure."""
    first, other = facts[0], facts[rank]
    who = f"rank {rank} on {other['host']}"
    if (error := device_disagreement(facts, rank)) is not None:
        return EnvironmentFailure(f"{who}{error}")
    if (error := version_disagreement(first["versions"], other["versions"])) is not None:
        return EnvironmentFailure(f"{who}{error}")
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


def device_disagreement(facts: Sequence[dict[str, Any]], rank: int) -> str | None:
    """What is wrong with a rank's device, or differs from that of rank 0, or is another rank's too; else None. Pure."""
    own, first = facts[rank]["device"], facts[0]["device"]
    if own["lacks"]:
        return f": {own['lacks']}"
    if bool(own["name"]) != bool(first["name"]):
        names = f"{own['name'] or 'the CPU'}, rank 0 on {first['name'] or 'the CPU'}"
        return f" computes on {names}; give every rank a GPU, or give --device cpu"
    if transport(facts[rank]) != transport(facts[0]):
        ways = f"{transport(facts[rank])}, rank 0 by {transport(facts[0])}"
        return f" reduces gradients by {ways}; install the same Horovod on every host"
    for before in range(rank):
        if own["uuid"] and facts[before]["device"]["uuid"] == own["uuid"]:
            return (
                f" has the same GPU as rank {before} ({own['name']}, UUID {own['uuid']}); start one rank for each GPU,"
                f" and let $CUDA_VISIBLE_DEVICES show them all, or one of its own to each rank"
            )
    return None


def version_disagreement(first: Mapping[str, str], other: Mapping[str, str], reference: str = "rank 0") -> str | None:
    """Which of the `versions` of a process differs from that of the first one, the ``reference``; else None. Pure."""
    for name in sorted({**first, **other}):
        ours, theirs = first.get(name), other.get(name)
        if ours != theirs:
            return (
                f" has {name} {theirs or 'not installed'}, {reference} has {ours or 'none'}; install the same versions"
                " on every host"
            )
    return None


def transport(facts: dict[str, Any]) -> str:
    """What carries the gradients of a rank: NCCL, if they are on a GPU and this Horovod has it."""
    return "NCCL" if facts["device"]["name"] and facts["has_nccl"] else "Gloo"


def describe_devices(facts: Sequence[dict[str, Any]]) -> list[str]:
    """The devices of all ranks and what carries their gradients; then what keeps GPUs from being used. Pure."""
    ring = [transport(facts[0])] if len(facts) > 1 else []
    hosts = len({each["host"] for each in facts})
    devices = [each["device"] for each in facts]
    lines = [f"{counted(len(facts), 'rank')} on {counted(hosts, 'host')}: {', '.join([*device_names(devices), *ring])}"]
    if devices[0]["name"] and ring == ["Gloo"]:
        lines.append("gradients go through host memory, because this Horovod has no NCCL; run: make install GPU=1")
    skipped = {each["host"]: each["device"]["skipped"] for each in facts if each["device"]["skipped"]}
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
    """Give "1 rank", "2 ranks". Pure."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def versions() -> dict[str, str]:
    """Of what decides what is learned, here; ``$RINGSLICE_CODE`` is a user's own, for example of the model's code."""
    found = {"python": ".".join(platform.python_version_tuple()[:2]), "ringslice's code": code_digest()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    if code := os.environ.get("RINGSLICE_CODE"):
        found["$RINGSLICE_CODE"] = code
    return found


def code_digest() -> str:
    """The first digits of the SHA-256 over the Python files of `CODE`, which a version number may not tell apart."""
    root = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for path in sorted(each for name in CODE for each in (root / name).rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def fingerprint_here(dataset: Dataset) -> str | None:
    """That of the slices as this rank sees them; None if it sees none."""
    stage = dataset.stage
    return stage.fingerprint() if stage.marker.exists() else None


def require_equal_weights(trainer: Trainer, collective: Collective) -> None:
    """Raise EnvironmentFailure unless each weight is the same, bit for bit, on all ranks that have it."""
    own = trainer.digests()
    whole = hashlib.sha256("".join(digest for _, digest in own).encode()).hexdigest()
    if len(set(collective.gather_object(whole))) == 1:
        return
    expected: dict[str | int, str] = {}
    wrong: list[list[str]] = []
    for of_rank in collective.gather_object(own):
        keys = [name if trainer.is_divided else number for number, (name, _) in enumerate(of_rank)]
        pairs = zip(keys, of_rank, strict=True)
        wrong.append([name for key, (name, digest) in pairs if expected.setdefault(key, digest) != digest])
    different = [rank for rank, names in enumerate(wrong) if names]
    if different:
        first = wrong[different[0]][0]
        raise EnvironmentFailure(
            f"the weights of ranks {different} are not those of rank 0, {first} first: gradients were not"
            " reduced, or a layer changes this variable by the data of its rank"
        )
