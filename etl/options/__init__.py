"""Options of the commands: one declaration for click, argparse and child processes."""
