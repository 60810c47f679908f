"""The workloads of PASTA (CGO 2026), weights generated, and the experiments that `ae` runs.

`python -m pasta_workloads model` is the program that the collector profiles; the other names are
experiments, which start it under `accel-trace` and write records (docs/contracts.md).
"""
