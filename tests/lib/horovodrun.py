#!/usr/bin/env python3
"""horovodrun, told that Horovod is built with Gloo and without MPI.

tests/lib/horovodrun.py -np RANKS COMMAND...

To find that out it would load TensorFlow twice before each start, in processes of their own; all else is its own code.
"""

import sys

from horovod.runner import launch

if __name__ == "__main__":
    launch.gloo_built = lambda verbose=False: True
    launch.mpi_built = lambda verbose=False: False
    sys.exit(launch.run_commandline())
