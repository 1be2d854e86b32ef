#!/usr/bin/env python3
"""What horovodrun does on one machine, with its own launcher, but without loading TensorFlow to look what is built.

tests/train/launch.py RANKS COMMAND...
"""

import os
import sys

from horovod.runner.common.util.settings import Settings
from horovod.runner.gloo_run import gloo_run

if __name__ == "__main__":
    ranks = int(sys.argv[1])
    settings = Settings(num_proc=ranks, hosts=f"localhost:{ranks}", verbose=0)
    gloo_run(settings, ["lo"], dict(os.environ), "127.0.0.1", sys.argv[2:])
