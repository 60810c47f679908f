"""`python -m valueexpert EXPERIMENT ...`"""

import sys

from valueexpert.cli import PROGRAM

if __name__ == "__main__":
    sys.exit(PROGRAM.main())
