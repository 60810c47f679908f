"""`python -m rap_training`: see `rap_training.cli`."""

import sys

from rap_training.cli import main

if __name__ == "__main__":  # spawned ranks import this module too
    sys.exit(main())
