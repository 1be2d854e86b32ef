"""The ways that are compared, each started by `lib.child` in a process of its own.

A module here imports only what its way needs, because a peer may run in an environment without the project's packages.
"""
