"""The paper's design points that a CPU has a counterpart for, as real kernels."""
