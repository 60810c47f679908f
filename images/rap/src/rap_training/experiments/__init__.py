"""The experiments of the recipe, a file each: `run(config, out)` starts `on_rank` on each rank."""
