"""Two runs, or reference sets, of one recipe: what is faster, slower or the same, and how sure."""
