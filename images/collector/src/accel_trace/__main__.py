"""`python -m accel_trace`."""

import sys

from accel_trace.cli import main

sys.exit(main())
