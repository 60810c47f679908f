"""What every workload needs and none should write twice: records, environment, timers, progress.

Standard library only. The file formats are those of `docs/contracts.md`.
"""
