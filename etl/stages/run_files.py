"""What the files of a training run are called: the trainer writes them, a run's page reads them."""

METRICS_FOLDER = "metrics"
RECIPE_FILE = "recipe.toml"
RESULT_FILE = "result.json"
CONFUSION_FORMAT = "ringslice.confusion/1"


def confusion_file(split: str) -> str:
    """Of the table of what was taken for what, over this split."""
    return f"confusion-{split}.json"


RUN_SLICES_FILE = "slices.json"  # in a run's work folder: the fingerprint of the slices that its trainer reads
