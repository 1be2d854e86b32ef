"""Options of the stages, declared once for click, argparse and child processes; how a click command is run.

The name, help, default and parser of a stage's option belong here. What an option does is in the package of its stage;
options of training are in `train.config`."""
