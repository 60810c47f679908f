"""Handlers: each watches one source (PyTorch, CUPTI, the stack) and reports events."""
