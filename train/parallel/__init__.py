"""What the loop needs of other processes and of a framework, as interfaces; cores of a rank, its start-up.

Imports no framework. Strategies are in `train.strategies`; lost and stalled ranks are detected in `train.monitor`."""
