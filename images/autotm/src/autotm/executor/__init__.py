"""From a PyTorch module to a training step under a cap: captured, measured, run where planned."""
