"""Experiments of the recipe, a module each: `run(config, out)`."""
