"""Real servers that tests start for themselves: a registry, a Docker daemon, a cable to cut."""
