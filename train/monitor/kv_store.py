"""Small notes between ranks, through the key-value store that horovodrun's launcher serves to them.

It is up while the launcher is, whatever became of the storage. An elastic launcher empties it whenever the ranks
change: a note that matters is sent again.
"""

import json
import os
from http.client import HTTPConnection, HTTPException
from typing import Any, Self

REQUEST_S = 1.0
NOTE_BYTES = 1 << 20
NOT_FOUND = 404


class KVStoreClient:
    """Notes by scope and key, each a JSON object. The store is HTTP: ``PUT`` and ``GET /scope/key``."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port

    @classmethod
    def of_launcher(cls) -> Self | None:
        """That of this rank's launcher; None if there is none."""
        host, port = (os.environ.get(f"HOROVOD_GLOO_RENDEZVOUS_{name}") for name in ("ADDR", "PORT"))
        return cls(host, int(port)) if host and port else None

    def put(self, scope: str, key: str, note: dict[str, Any]) -> None:
        """Put ``note`` in the place of what is there. Raises OSError if the store does not take it."""
        self._ask("PUT", scope, key, json.dumps(note).encode())

    def get(self, scope: str, key: str) -> dict[str, Any] | None:
        """The note; None if there is none, or something else. Raises OSError if the store does not answer."""
        answer = self._ask("GET", scope, key)
        try:
            note = None if answer is None else json.loads(answer)
        except ValueError:
            return None
        return note if isinstance(note, dict) else None

    @staticmethod
    def path_of(scope: str, key: str) -> str:
        """Where a note is in the store."""
        return f"/{scope}/{key}"

    def _ask(self, method: str, scope: str, key: str, body: bytes | None = None) -> bytes | None:
        # not urllib: it would go through the proxy of $http_proxy; no second request on a connection: HTTP/1.0
        connection = HTTPConnection(self.host, self.port, timeout=REQUEST_S)
        try:
            connection.request(method, self.path_of(scope, key), body)
            answer = connection.getresponse()
            if answer.status == NOT_FOUND:
                return None
            if answer.status >= 400:
                raise OSError(f"the launcher answers {answer.status}")
            return answer.read(NOTE_BYTES)
        except HTTPException as error:
            raise OSError(f"the launcher does not answer in HTTP: {error!r}") from None
        finally:
            connection.close()
