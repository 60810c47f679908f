"""Builds and runs the artifact of the MICRO 2024 paper. Only what runs it needs numpy."""
