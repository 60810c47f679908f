"""The examples of the README run as they stand."""

import re
from pathlib import Path

import pytest

BLOCKS = re.findall(
    r"```python\n(.*?)```", (Path(__file__).parents[1] / "README.md").read_text(), re.DOTALL
)


def run(text: str) -> dict:
    names: dict = {}
    exec(compile(text, "README.md", "exec"), names)
    return names


def test_the_example_for_a_cpu():
    names = run(BLOCKS[0])
    assert names["bags"].shape == (256, 192)
    for times in names["times"].values():
        assert len(times) == 5
        assert min(times) > 0
    names["indices"][1][7] = 50_000
    with pytest.raises(IndexError, match="index 50000 at position 7"):
        names["calls"]["best"]()


@pytest.mark.gpu
def test_the_example_for_a_gpu():
    import torch

    names = run(BLOCKS[1])
    assert names["bags"].shape == (256, 256)
    assert len(names["times"]["best"]) == 5
    for table in range(2):
        want = torch.nn.functional.embedding_bag(
            names["indices"][table], names["weights"][table], names["offsets"][table],
            mode="mean", include_last_offset=True,
        )  # fmt: skip
        got = names["bags"][:, 128 * table : 128 * (table + 1)]
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
