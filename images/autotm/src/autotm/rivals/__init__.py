"""What else trains within less memory: each rival with a knob, searched at a measured peak."""
