"""The folder `ROOT/runs/NAME`: metrics, audit, confusion matrix, TensorBoard events, position."""
