"""The calling-context tree: costs of CPU and GPU by who called whom."""
