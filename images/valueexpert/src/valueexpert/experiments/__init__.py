"""The experiments: a module each, `run(config, out)`."""
