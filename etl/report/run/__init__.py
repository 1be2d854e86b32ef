"""The report page of a training run: curves, confusion matrix, waits of each rank, settings.

Each module reads files of the run and computes one section; `charts` draws, `page` puts the sections together."""
