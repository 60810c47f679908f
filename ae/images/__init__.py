"""What images are made of, how they are built, published and bundled."""
