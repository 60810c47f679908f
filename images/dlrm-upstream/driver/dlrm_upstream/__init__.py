"""Builds and runs the artifact of the MICRO 2024 paper. Standard library, and numpy where it runs."""
