"""The folder `ROOT/runs/NAME`: metrics, audit, confusion matrix, TensorBoard events, position.

Where these files lie and what is in them belongs here. Checkpoints are in `train.checkpoints`, logs of ranks in
`train.monitor`; when a file is written is decided in `train.trainer`."""
