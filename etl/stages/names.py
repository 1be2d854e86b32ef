"""What files and folders are called that more than one package reads or writes."""

WORK_FOLDER = "_work"  # of a stage or a run: its lease, its plan, and what is not published yet
PLAN_FILE = "plan.json"
RUN_FILE = "run.json"
GENERATIONS_FOLDER = "generations"

VERIFIED_FOLDER = "verified"
ERASED_FOLDER = "erased"
STAGE_FOLDERS = ("raw", "normalized", "slices", VERIFIED_FOLDER, "runs")

# of a training run: the trainer writes them, a run's page reads them
METRICS_FOLDER = "metrics"
RECIPE_FILE = "recipe.toml"
RESULT_FILE = "result.json"
RUN_SLICES_FILE = "slices.json"  # in the work folder: the fingerprint of the slices that the trainer reads
