"""The tests of recipes have the launcher's guard against daemons and networks, and its engine."""

from tests.conftest import _guard, docker_endpoint, docker_host

__all__ = ["_guard", "docker_endpoint", "docker_host"]
