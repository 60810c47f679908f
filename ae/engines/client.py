"""docker-py's client, corrected where it does not do what this program needs."""

from __future__ import annotations

from typing import Any

from docker.api import APIClient
from docker.transport import UnixHTTPAdapter


class Client(APIClient):
    """A client whose certificates of the daemon are those of the daemon.

    REQUESTS_CA_BUNDLE, which people behind a proxy set for the web, would replace them.
    """

    def share_connections(self) -> None:
        """Let all requests share connections; docker-py keeps some for every address of its own.

        For a socket where a connection costs a login.
        """
        old: Any = self.get_adapter("http+docker://")
        # A patient client has no timeout, which the adapter's annotation does not know.
        self.mount("http+docker://", _OnePool(f"http+unix://{old.socket_path}", old.timeout))

    def merge_environment_settings(self, *words: Any, **named: Any) -> Any:
        """As requests has it, but for `verify`."""
        settings = super().merge_environment_settings(*words, **named)
        if self.verify is not True:  # a CA of its own
            settings["verify"] = self.verify
        return settings


class _OnePool(UnixHTTPAdapter):
    def get_connection(self, url: str | bytes, proxies: Any = None) -> Any:
        return super().get_connection(self.socket_path, proxies)
