"""`python -m dlrm_inference EXPERIMENT ...`"""

import sys

from dlrm_inference.cli import main

sys.exit(main())
