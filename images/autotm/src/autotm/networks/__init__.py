"""The paper's networks layer by layer, as graphs of shapes: no PyTorch, no data."""
