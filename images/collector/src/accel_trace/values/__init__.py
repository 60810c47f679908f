"""What values a program moves: patterns, redundancy and the flow of values, as pure functions."""
