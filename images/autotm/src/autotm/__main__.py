"""`python -m autotm`: see `autotm.cli`."""

import sys

from autotm.cli import main

if __name__ == "__main__":
    sys.exit(main())
