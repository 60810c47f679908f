"""Which type the code of a kernel uses a loaded or stored register as: see `types`."""
