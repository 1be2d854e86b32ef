"""A run: its folder `ROOT/runs/NAME`, its data and position, its checkpoints, metrics, audit and results.

Where these files lie, what is in them and when they are written belongs here. How a checkpoint is stored is in
`train.checkpoints`, logs of ranks are in `train.monitor`."""
