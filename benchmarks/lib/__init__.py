"""Shared parts of the benchmarks: command line, rounds, results, child processes, memory samplers and made-up data.

A claim and how it is measured belong in the script beside this package; what runs in a child process belongs in `ways`.
"""
