"""Processes of a task of a DAG run, to be killed: its command, Airflow's runner of it, and the supervisor of that."""

import signal
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from etl.storage.place import Place
from tests.airflow_dags.real_scheduler import Scheduler
from tests.hadoop.processes import Process, find_all
from tests.lib.commands import wait_until
from train.checkpoints import store

VICTIMS = ("command", "runner", "supervisor")  # each is the parent of the one before
Kills = Sequence[tuple[str, str]]  # a task, which of its VICTIMS
Signs = Mapping[str, Callable[[], object]]  # by task


def processes_of_run(run: str) -> list[Process]:
    """The processes of the commands of a DAG run, by a variable that Airflow gives them; the oldest first."""
    found = find_all(lambda _, its: f"AIRFLOW_CTX_DAG_RUN_ID={run}".encode() in its)
    return sorted(found, key=lambda each: each.started)


def kill(scheduler: Scheduler, dag: str, run: str, victim: str, is_left: Callable[[], object]) -> None:
    """Kill -9 one of `VICTIMS`, and wait until nothing ``is_left`` of the task, and no process here.

    No task begins meanwhile.
    """
    processes = processes_of_run(run)
    for each in processes:  # so that the task does not end before
        each.send(signal.SIGSTOP)
    scheduler.pause(dag)
    process = processes[0]
    found = {VICTIMS[0]: process}
    for name in VICTIMS[1:]:
        pid = int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[1])
        found[name] = process = Process.find(pid) or Process(pid, 0)
    found[victim].send(signal.SIGKILL)
    for each in processes:
        each.send(signal.SIGCONT)
    wait_until(lambda: not (processes_of_run(run) or found["runner"].lives or is_left()))
    scheduler.pause(dag, False)


def kill_each(
    scheduler: Scheduler, dag: str, run: str, kills: Kills, *, is_at_work: Signs, is_left: Signs | None = None
) -> None:
    """Kill those of a DAG run that runs, each once its task ``is_at_work``; then wait for the end, which is success.

    Each kill costs one try, and no more. Nothing ``is_left`` elsewhere of a task whose command could end in order.
    """
    tries = dict.fromkeys(is_at_work, 1)
    for task, victim in kills:

        def is_there(task: str = task) -> bool:
            return bool(is_at_work[task]() and processes_of_run(run))

        wait_until(is_there, scheduler.processes["scheduler"])
        left = (is_left or {}).get(task, list) if victim != VICTIMS[0] else list
        kill(scheduler, dag, run, victim, left)
        tries[task] += 1
    assert scheduler.wait_for_end(dag, run) == "success", scheduler.tasks(dag, run)
    found = scheduler.tasks(dag, run)
    assert {task: found[task] for task in tries} == {task: ("success", number) for task, number in tries.items()}


EPOCHS = 8


def train(scheduler: Scheduler, root: Place, run: str, candidates: int = 1, epochs: int = EPOCHS) -> None:
    """Start a DAG run that trains so many candidates, in the training runs ``run``, or ``run-1``, ``run-2`` …"""
    scheduler.pause("image_model", False)
    params = {"root": str(root), "run": "run", "candidates": [{"model": "mlp", "epochs": epochs}] * candidates}
    scheduler.trigger("image_model", params, run)


def kill_in_training(scheduler: Scheduler, root: Place, run: str) -> list[str]:
    """Kill each of `VICTIMS` in the training of its own candidate, and wait for the end; returns the training runs."""
    runs = [f"run-{number}" for number in range(1, len(VICTIMS) + 1)]
    signs = {f"train {at}": partial(store.steps, root / f"runs/{each}") for at, each in enumerate(runs)}
    train(scheduler, root, run, len(runs))
    kill_each(scheduler, "image_model", run, list(zip(signs, VICTIMS, strict=True)), is_at_work=signs)
    return runs
