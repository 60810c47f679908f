"""The experiments of the recipe, a file each: `run(config, out)`."""
