"""Processes that do not outlive the one that started them (Linux's prctl(2))."""

import ctypes

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_LIBC = ctypes.CDLL(None)  # loaded now: between a fork and its exec only a system call is safe


def end_with_parent(number: int) -> None:
    """Have this process get the signal ``number`` when its parent ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, number)
