"""Ways to let preprocessing share a GPU with training: RAP, its parts, and the baselines."""
