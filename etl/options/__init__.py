"""Options of the stages as click options, each declared once; their types; how a click command is run.

The name, type, default and help of a stage's option belong here. What an option does is in the package of its stage;
options of training are in `train.config`."""
