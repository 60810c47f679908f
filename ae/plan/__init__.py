"""From the words of a person to a list of points. Pure."""
