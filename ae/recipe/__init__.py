"""A paper as data: models of recipe.yaml, and how it is read and checked."""
