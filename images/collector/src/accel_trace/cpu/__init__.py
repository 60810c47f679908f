"""Accesses of the CPU to chosen memory, seen by page protection; nothing is privileged."""
