"""How pytest-xdist's workers share the tests: one takes all that need Hadoop, for there is one, and they exclude each
other; else a file stays together, so that its own fixtures are made once.
"""

from xdist.scheduler.loadscope import LoadScopeScheduling

from tests.needs import needs_hadoop


class ByNeed(LoadScopeScheduling):
    """Runs of tests that belong together, to whoever is free, in the order in which they were collected."""

    def _split_scope(self, nodeid: str) -> str:
        return "hadoop" if needs_hadoop(nodeid) else nodeid.partition("::")[0]
