"""What each stage cost, by its ``run.json``."""

from typing import Any

from etl.report.text import plain
from etl.stages.stage import Stage

SHOWN = ("started", "finished", "seconds", "host", "user", "runner", "command", "python", "versions", "counters")


def read_cost(stage: Stage, images: int | None) -> dict[str, Any]:
    """The run that finished ``stage``, which worked on so many images (None: not known), by the template's names.

    ``details`` are its command, counters and versions, as text by name.
    """
    run = stage.read_run() if stage.marker.exists() else {}
    if not run:
        return {"stage": stage.name, "known": False, "details": []}
    details = [("command", " ".join(run["command"]))] if run.get("command") else []
    details += [(name, plain(value)) for name, value in run.items() if name not in SHOWN and value is not None]
    details += [(f"counted {name}", plain(value)) for name, value in sorted(run.get("counters", {}).items())]
    versions = {"python": run.get("python"), **run.get("versions", {})}
    details.append(("versions", ", ".join(f"{name} {version}" for name, version in versions.items() if version)))
    worked = run.get("packed", run.get("decoded", images)) or 0  # of a renewal, what was new
    seconds = run.get("seconds", 0.0)
    facts = {"images": worked, "seconds": seconds, "images_per_s": worked / seconds if seconds else None}
    texts = {name: run.get(name) or "" for name in ("runner", "host", "finished")}
    return {"stage": stage.name, "known": True, "details": details, **facts, **texts}
