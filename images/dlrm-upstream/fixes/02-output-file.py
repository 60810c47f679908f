"""What is wrong: load_emb.py saves its sums to a path on the authors' own disk.
Where: scripts/load_emb.py once.
What this does: <n>.pt lies in the folder that the script is started in, where the driver checks it.
Changes no measurement: saving comes after the last timed batch.
"""

import sys
from pathlib import Path

from edit import replace

AUTHORS = "/scratch1/rzj5233/problem2/reproduce_MICRO24_GPU_DLRM_inference/scripts/"

replace(Path(sys.argv[1]) / "scripts/load_emb.py", f"'{AUTHORS}' +", "'' +", times=(1,))
