"""The six models of the paper's Table V and Figures 7 to 14."""
