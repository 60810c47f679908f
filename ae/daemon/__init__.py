"""Docker's socket, below images and engines."""
