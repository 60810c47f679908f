"""`python -m pasta_workloads`: see `pasta_workloads.cli`."""

import sys

from pasta_workloads.cli import main

if __name__ == "__main__":  # spawned ranks import this module too
    sys.exit(main())
