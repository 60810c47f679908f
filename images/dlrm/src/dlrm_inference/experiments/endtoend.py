"""Full DLRM inference: every variant inside the same model."""

from __future__ import annotations

from reprokit.records import RecordWriter

from dlrm_inference.config import Config


def run(config: Config, out: RecordWriter) -> None:
    """Measure on the device of the Config. Raises WrongResult."""
    if config.device == "cpu":
        from dlrm_inference.cpu.endtoend import endtoend
    else:
        from dlrm_inference.cuda.endtoend import endtoend
    endtoend(config, out)
