"""Tensors that stay, leave or are made again: AutoTM (ASPLOS 2020) and ours."""
