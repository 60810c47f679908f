"""accel-trace: what a CUDA or PyTorch program does with its GPU (PASTA, CGO 2026, section 3)."""
