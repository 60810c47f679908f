"""ae: reproduces GPU-systems papers from containers and says claim by claim what held."""

__version__ = "0.1.0"
