"""Table V from shapes alone: which kernels PyTorch launches without cuDNN, and what they touch."""
