"""The whole job as a DAG: ingest, normalize, shard, verify, train, evaluate, prune.

Each night renews one dataset: only new images are packed and decoded, slices named after the day keep every known image
in its split, and old slices that no run names are removed.

Link this file into Airflow's folder of DAGs, on every machine that parses or runs it:

    ln -s /path/to/ringslice/airflow_dags/image_training.py "$AIRFLOW_HOME/dags/"

Its tasks run the project's commands in the project's own environment (`make install`), which need not be Airflow's. The
project is the repository that the link points into; where the file was copied, `RINGSLICE_HOME` names it.
`RINGSLICE_SOURCE` and `RINGSLICE_DATA` give the places that a scheduled run works with. For Hadoop the worker's
environment holds `HADOOP_HOME`, `HADOOP_CONF_DIR` and `JAVA_HOME`.

A failed task is tried again only where that can help: not where the data falls short (exit status 1), nor after wrong
use (2). What was done is not done again, and what was stopped goes on.
"""

import json
import os
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, Context, Param
from airflow.sdk.exceptions import AirflowException, AirflowFailException

HOME = Path(os.environ.get("RINGSLICE_HOME") or Path(__file__).resolve().parent.parent)
DATA = os.environ.get("RINGSLICE_DATA") or f"{HOME}/data"
SOURCE = os.environ.get("RINGSLICE_SOURCE") or f"{HOME}/data/sources/digits"

RUNNERS = ("inline", "local", "hadoop")
PRINTABLE = "^[^\\x00-\\x1f]+$"
DATE_HELP = "{date} in it stands for the day of the DAG run."

PARAMS = {
    "source": Param(
        SOURCE,
        f"The images: a folder with a folder per class, or with IDX files. {DATE_HELP}",
        type="string",
        pattern=PRINTABLE,
    ),
    "root": Param(
        f"{DATA}/nightly",
        f"Where the dataset and its runs go: a path, file:///… or hdfs://…. {DATE_HELP}",
        type="string",
        pattern=PRINTABLE,
    ),
    "size": Param(
        "224",
        "Height and width of the images in pixels: 224 or 224x320. Empty: the source's own where it states one.",
        type=["null", "string"],
        pattern="^([1-9][0-9]*(x[1-9][0-9]*)?)?$",
    ),
    "name": Param(
        "{date}",
        f"Name of the slices; known images keep the split that they have in the last ones before. {DATE_HELP}",
        type="string",
        pattern="^[^._/\\x00-\\x1f][^/\\x00-\\x1f]*$",
    ),
    "workers": Param(2, "Ranks that train; slices are a multiple of them.", type="integer", minimum=1),
    "slices": Param(
        None, "Slices of the training split. Empty: about 200 MB each.", type=["null", "integer"], minimum=1
    ),
    "runner": Param("local", "Where mrjob runs normalize and shard.", type="string", enum=list(RUNNERS)),
    "run": Param(
        None,
        "Name of the training run; one that is there is resumed. Empty: one of its own for each DAG run.",
        type=["null", "string"],
        pattern="^([^._/\\x00-\\x1f][^/\\x00-\\x1f]*)?$",
    ),
    "model": Param("cnn", "mlp, cnn, or module:function for your own.", type="string", pattern=PRINTABLE),
    "epochs": Param(10, "Passes over the training split.", type="integer", minimum=1),
    "decay_until": Param(
        None,
        "Epochs after which the learning rate is 0. Empty: those of the run's first start; give it to train longer.",
        type=["null", "number"],
        exclusiveMinimum=0,
    ),
    "batch": Param(64, "Examples per step on each rank.", type="integer", minimum=1),
    "min_accuracy": Param(
        None,
        "Fail where the accuracy on the test split is below this. Empty: never.",
        type=["null", "number"],
        minimum=0,
        maximum=1,
    ),
    "keep": Param(
        7,
        "Keep so many of the newest slices, and those that a run names; remove others. Empty: keep all.",
        type=["null", "integer"],
        minimum=1,
    ),
    "config": Param(
        None,
        "TOML file with further options of the stages, as for ringslice --config. Empty: none.",
        type=["null", "string"],
        pattern="^[^\\x00-\\x1f]*$",
    ),
    "overwrite": Param(
        False, "Replace what another source or configuration left at the root, instead of failing.", type="boolean"
    ),
}

DAY = "(dag_run.logical_date or dag_run.run_after)"
WITH_DATE = "{{{{ params.{name}.replace('{{date}}', {day} | ds) }}}}"

# The only way of params into a command: as values of variables, which bash never reads as code, whatever they hold.
ENVIRONMENT = {
    **{
        f"PARAM_{name.upper()}": f"{{{{ '' if params.{name} is none else params.{name} }}}}"
        for name in (
            "size",
            "workers",
            "slices",
            "runner",
            "model",
            "epochs",
            "decay_until",
            "batch",
            "min_accuracy",
            "keep",
            "config",
        )
    },
    "PARAM_SOURCE": WITH_DATE.format(name="source", day=DAY),
    "PARAM_ROOT": WITH_DATE.format(name="root", day=DAY),
    "PARAM_NAME": WITH_DATE.format(name="name", day=DAY),
    "PARAM_RUN": f"{{{{ params.run or 'airflow-' ~ ({DAY} | ts_nodash) }}}}",
    "PARAM_OVERWRITE": "{{ 'yes' if params.overwrite else '' }}",
}

PREPARE = """\
set -u
unset PYTHONHOME PYTHONPATH  # Airflow's, if anybody's
export PATH="$PWD/.venv/bin:$PATH"
[ -x .venv/bin/ringslice ] || {
    echo "no ringslice in $PWD/.venv: run make install there, or set RINGSLICE_HOME" >&2
    exit 3
}
"""

# Airflow sends SIGTERM to all processes of a task at once; a stage wants it for its first process alone, which ends the
# others in order. So a stage is a process group of its own (set -m), and the shell passes the signal on.
STAGE = """\
stage() {
    local command=$1 status
    shift
    set -m
    ringslice "$command" --json ${PARAM_CONFIG:+--config="$PARAM_CONFIG"} "$@" </dev/null &
    set +m  # no lines about jobs
    trap "kill -TERM $!" TERM
    while true; do
        wait $!
        status=$?
        kill -0 $! 2>/dev/null || exit "$status"  # else it was the signal that ended the waiting
    done
}
"""

# horovodrun exits 1 whatever the status of a rank was, puts the rank before each line, and says on a line of its own
# which status the first rank that failed had. The shell and the reader of its lines outlive it when SIGTERM comes.
ON_RANKS = """\
on_ranks() {
    trap : TERM
    horovodrun -np "$PARAM_WORKERS" "$@" 2>&1 | {
        trap '' TERM
        status=0 summary=
        while IFS= read -r line; do
            [[ $line =~ ^Exit\\ code:\\ ([0-9]+)$ ]] && status=${BASH_REMATCH[1]}
            if [[ $line == "[0]<stdout>:{"* ]]; then summary=${line#*:}; else printf '%s\\n' "$line"; fi
        done
        if [ -n "$summary" ]; then printf '%s\\n' "$summary"; fi
        exit "$status"
    }
    local statuses=("${PIPESTATUS[@]}")
    if ((statuses[1])); then exit "${statuses[1]}"; fi
    if ((statuses[0] == 1)); then exit 3; fi  # no rank failed: horovodrun itself did
    exit "${statuses[0]}"
}
"""

OVERWRITE = "${PARAM_OVERWRITE:+--overwrite}"

# by task: the shell function it needs, its command, and what Airflow's pages say of it
TASKS = {
    "ingest": (
        STAGE,
        f'stage ingest {OVERWRITE} -- "$PARAM_SOURCE" "$PARAM_ROOT"',
        "Packs the source's images into tar files under `ROOT/raw`.",
    ),
    "normalize": (
        STAGE,
        f'stage normalize {OVERWRITE} --runner="$PARAM_RUNNER" ${{PARAM_SIZE:+--size="$PARAM_SIZE"}} -- "$PARAM_ROOT"',
        "Brings every image to one size, as an mrjob job. Unusable ones are kept apart, with a reason.",
    ),
    "shard": (
        STAGE,
        f'stage shard {OVERWRITE} --runner="$PARAM_RUNNER" --name="$PARAM_NAME" --splits-from=newest'
        ' --workers="$PARAM_WORKERS" ${PARAM_SLICES:+--slices="$PARAM_SLICES"} -- "$PARAM_ROOT"',
        "Deals the images to TFRecord slices, as an mrjob job: classes in equal shares, known images where they were.",
    ),
    "verify": (
        STAGE,
        'stage verify --runner="$PARAM_RUNNER" --name="$PARAM_NAME" -- "$PARAM_ROOT"',
        "Reads the slices from the first byte to the last, as an mrjob job, and checks all that is said of them.",
    ),
    "train": (
        ON_RANKS,
        'on_ranks train/main.py --json --data="$PARAM_ROOT" --name="$PARAM_NAME" --run="$PARAM_RUN" --resume'
        ' --model="$PARAM_MODEL" --epochs="$PARAM_EPOCHS" --batch="$PARAM_BATCH"'
        ' ${PARAM_DECAY_UNTIL:+--decay-until="$PARAM_DECAY_UNTIL"}',
        "Trains on as many ranks as `workers` says; tried again, it goes on from the last checkpoint.",
    ),
    "evaluate": (
        ON_RANKS,
        'on_ranks train/evaluate.py --json --data="$PARAM_ROOT" --name="$PARAM_NAME" --run="$PARAM_RUN"'
        ' ${PARAM_MIN_ACCURACY:+--min-accuracy="$PARAM_MIN_ACCURACY"}',
        "Evaluates every image of the test split once, and fails below `min_accuracy`.",
    ),
    "prune": (
        STAGE,
        'if [ -n "$PARAM_KEEP" ]; then stage prune --keep="$PARAM_KEEP" -- "$PARAM_ROOT"; fi',
        "Removes slices that are neither among the newest nor named by a run, and parts that no others need.",
    ),
}


def parse_summary(line: str) -> Any:
    """The summary that a command printed last, for XCom; the line itself where it is none."""
    try:
        return json.loads(line)
    except ValueError:
        return line


class RingsliceOperator(BashOperator):
    """Runs one command of the project; fails for good where trying again cannot help."""

    HOPELESS: ClassVar[dict[int, str]] = {1: "the data falls short", 2: "wrong use"}

    def __init__(self, **options: Any) -> None:
        super().__init__(
            env=ENVIRONMENT,
            append_env=True,
            cwd=str(HOME),
            skip_on_exit_code=None,
            output_processor=parse_summary,
            **options,
        )

    def execute(self, context: Context) -> Any:
        """Run the command; returns its summary. Raises AirflowFailException, which is not retried, for 1 and 2."""
        try:
            return super().execute(context)
        except AirflowException as error:
            process = self.subprocess_hook.sub_process
            status = process.returncode if process else None
            if status in self.HOPELESS:
                raise AirflowFailException(
                    f"{self.task_id} exited {status}, {self.HOPELESS[status]}: not tried again. Its log says why."
                ) from error
            raise


with DAG(
    "image_training",
    description="Raw images to a trained and evaluated model: mrjob slices, a Horovod ring",
    doc_md=__doc__,
    schedule="@daily",
    start_date=datetime(2025, 1, 1),
    catchup=False,
    is_paused_upon_creation=True,
    max_active_runs=1,
    params=PARAMS,
    default_args={
        "retries": 2,
        "retry_delay": timedelta(minutes=2),
        "retry_exponential_backoff": 2,
        "max_retry_delay": timedelta(minutes=30),
    },
    tags=["ringslice"],
) as dag:
    previous = None
    for task_id, (function, command, doc) in TASKS.items():
        task = RingsliceOperator(task_id=task_id, bash_command=f"{PREPARE}{function}{command}", doc_md=doc)
        if previous:
            previous >> task
        previous = task
