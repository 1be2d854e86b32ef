"""Trying again: only what is worth it, with growing pauses, and not for long."""

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

PAUSES_S = (0.2, 0.5, 1.0, 2.0)
PATIENCE_S = 5.0

Result = TypeVar("Result")


def retrying(
    call: Callable[[], Result], is_transient: Callable[[Exception], bool], pauses_s: Sequence[float] = PAUSES_S
) -> Result:
    """What ``call`` returns; it is called once more after each of ``pauses_s`` while its failure is transient.

    Not after `PATIENCE_S`: clients try again by themselves, and what took them so long is no hiccup.

    For calls that may take effect twice, such as reading, listing, or deleting what may be gone.
    """
    begin = time.monotonic()
    for pause_s in pauses_s:
        try:
            return call()
        except Exception as error:
            if not is_transient(error) or time.monotonic() - begin > PATIENCE_S:
                raise
            time.sleep(pause_s)
    return call()
