"""What each stage cost, by its ``run.json``."""

from dataclasses import dataclass

from etl.report.text import plain
from etl.stages.stage import Stage


@dataclass(frozen=True)
class Cost:
    """One stage's run; ``details`` are its counters and versions, as text by name."""

    stage: str
    known: bool
    finished: str = ""
    seconds: float = 0.0
    images: int = 0
    runner: str = ""
    host: str = ""
    details: tuple[tuple[str, str], ...] = ()

    @property
    def images_per_s(self) -> float | None:
        return self.images / self.seconds if self.seconds else None


def read_cost(stage: Stage, images: int | None) -> Cost:
    """What is known of the run that finished ``stage``, which worked on so many images (None: not known)."""
    run = stage.read_run() if stage.marker.exists() else {}
    if not run:
        return Cost(stage.name, known=False)
    shown = ("started", "finished", "seconds", "host", "user", "runner", "command", "python", "versions", "counters")
    details = [("command", " ".join(run.get("command", [])))] if run.get("command") else []
    details += [(name, plain(value)) for name, value in run.items() if name not in shown and value is not None]
    details += [(f"counted {name}", plain(value)) for name, value in sorted(run.get("counters", {}).items())]
    versions = {"python": run.get("python"), **run.get("versions", {})}
    details.append(("versions", ", ".join(f"{name} {version}" for name, version in versions.items() if version)))
    worked = run.get("packed", run.get("decoded", images)) or 0  # of a renewal, what was new
    return Cost(
        stage.name,
        True,
        run.get("finished", ""),
        run.get("seconds", 0.0),
        worked,
        run.get("runner") or "",
        run.get("host", ""),
        tuple(details),
    )
