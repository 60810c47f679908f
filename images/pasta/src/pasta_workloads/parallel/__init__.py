"""A GPT-2-medium-sized training step on several ranks: data, tensor and pipeline parallel."""
