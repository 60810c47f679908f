"""A paper's claims, judged against records."""
