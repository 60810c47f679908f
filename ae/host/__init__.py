"""This machine: processes, signals, files, facts."""
