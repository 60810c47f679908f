"""docker-py's client, corrected where it does not do what this program needs."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from typing import Any

from docker.api import APIClient
from docker.transport.unixconn import UnixHTTPAdapter, UnixHTTPConnection, UnixHTTPConnectionPool

Dial = Callable[[], socket.socket]
# The daemon tells of a pull or push several times a second, but waits for ever for a registry that
# keeps the connection and says nothing. Unpacking and storing a large layer may take minutes.
SILENCE_S = 600.0
_TRANSFER = re.compile(r"/images/(create$|.+/push$)")


class Client(APIClient):
    """A client whose certificates of the daemon are those of the daemon.

    REQUESTS_CA_BUNDLE, which people behind a proxy set for the web, would replace them. `dial`
    makes its connections where the daemon is not at an address of its own.
    """

    def __init__(self, *, dial: Dial | None = None, **named: Any) -> None:
        self._dial = dial
        super().__init__(**named)

    def mount(self, prefix: str | bytes, adapter: Any) -> None:
        """As requests has it; what docker-py mounts for a socket is replaced by what dials."""
        if self._dial is not None and prefix == "http+docker://":
            adapter = _Dialling(self._dial, adapter)
        super().mount(prefix, adapter)

    def post(self, url: str | bytes, *words: Any, **named: Any) -> Any:
        """As requests has it, but a pull or push that falls silent for SILENCE_S is a time-out."""
        if named.get("timeout") is None and _TRANSFER.search(str(url)):
            named["timeout"] = SILENCE_S
        return super().post(url, *words, **named)

    def merge_environment_settings(self, *words: Any, **named: Any) -> Any:
        """As requests has it, but for `verify`."""
        settings = super().merge_environment_settings(*words, **named)
        if self.verify is not True:  # a CA of its own
            settings["verify"] = self.verify
        return settings


class _Dialling(UnixHTTPAdapter):
    """Connections that are dialled, shared by all requests.

    docker-py itself keeps some for every address of its own; here each costs a process.
    """

    def __init__(self, dial: Dial, old: UnixHTTPAdapter) -> None:
        super().__init__("http+unix:///dialled", old.timeout)
        self._pool = _Pool(dial, old.timeout)

    def get_connection(self, url: str | bytes, proxies: Any = None) -> Any:
        return self._pool

    def close(self) -> None:
        self._pool.close()
        super().close()


class _Pool(UnixHTTPConnectionPool):
    def __init__(self, dial: Dial, timeout: Any) -> None:
        super().__init__("http://localhost", "", timeout)
        self._dial = dial

    def _new_conn(self) -> Any:
        return _Connection(self._dial, self.timeout)


class _Connection(UnixHTTPConnection):
    def __init__(self, dial: Dial, timeout: Any) -> None:
        super().__init__("http://localhost", "", timeout)
        self._dial = dial

    def connect(self) -> None:
        self.sock = self._dial()
        self.sock.settimeout(self.timeout)
