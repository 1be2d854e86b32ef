"""The site's umask, ``fs.permissions.umask-mode``: what of a new file's and folder's permissions is taken away."""

import re
from collections.abc import Mapping

from etl.errors import EnvironmentFailure

PROPERTY = "fs.permissions.umask-mode"
DEFAULT = "022"  # Hadoop's own

_BITS = {"r": 4, "w": 2, "x": 1, "-": 0}
_CLASSES = {"u": 6, "g": 3, "o": 0}  # bits to the left
_CLAUSE = re.compile(r"([ugoa]*)([+=-])([rwx-]*)")


def site_umask(site: Mapping[str, str]) -> int:
    """The umask of the site's configuration: octal, or symbolic, which says what is left (``u=rwx,g=rx,o=``).

    Raises EnvironmentFailure for a text that is neither.
    """
    text = site.get(PROPERTY, DEFAULT)
    if re.fullmatch(r"[0-7]{1,4}", text):
        return int(text, 8) & 0o777
    left = dict.fromkeys(_CLASSES, 0)
    for clause in text.split(","):
        parsed = _CLAUSE.fullmatch(clause.strip())
        if parsed is None:
            raise EnvironmentFailure(
                f"{PROPERTY} {text!r} of the files under HADOOP_CONF_DIR is no umask; set it to one like 027 or"
                " u=rwx,g=rx,o="
            )
        who, action, letters = parsed.groups()
        for each in _CLASSES if not who or "a" in who else who:
            left[each] = 0 if action == "-" else sum({_BITS[letter] for letter in letters})
    return 0o777 & ~sum(bits << _CLASSES[each] for each, bits in left.items())
