import pytest
from dlrm_inference.config import Config, ConfigError


def test_defaults_are_the_papers_sizes():
    config = Config()
    assert (config.tables, config.rows, config.dim) == (12, 500_000, 128)
    assert (config.batch, config.pooling, config.draws) == (2048, 150, 307_200)
    assert config.row_bytes == 512
    assert config.samples >= 50


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("float16", 2), ("bfloat16", 2)])
def test_a_row_has_the_bytes_of_its_type(dtype, size):
    assert Config(dtype=dtype, dim=100).row_bytes == 100 * size


@pytest.mark.parametrize(
    ("variant", "asked", "distance"),
    [("rpf", 0, 2), ("smpf", 0, 10), ("l1dpf", 0, 2), ("lmpf", 0, 2), ("rpf_l2p", 0, 2),
     ("rpf", 6, 6), ("base", 0, 0)],
)  # fmt: skip
def test_distances_default_to_the_artifacts(variant, asked, distance):
    assert Config(distance=asked).distance_of(variant) == distance


def test_all_l2_modes_and_launches_are_spelled_out():
    assert Config(l2_mode="all").l2_modes == ("hint", "setaside", "window", "setaside_reset")
    assert Config(l2_mode="hint,window").l2_modes == ("hint", "window")
    assert Config(launch="both").launches == ("one_table", "all_tables")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"variants": ("rfp",)}, "unknown variant 'rfp'; did you mean 'rpf'?"),
        ({"variants": ("base", "base")}, "named twice"),
        ({"variants": ()}, "no variant"),
        ({"dataset": "hihg_hot"}, "did you mean 'high_hot'?"),
        ({"dataset": "zzz"}, "known: one_item, high_hot"),
        ({"device": "tpu"}, "unknown device 'tpu'"),
        ({"l2_mode": "hint,oops"}, "unknown l2-mode 'oops'"),
        ({"rows": 0}, "--rows must be at least 1, not 0"),
        ({"warmup": -1}, "--warmup must be at least 0, not -1"),
        ({"distances": (2, 0)}, "--distances must be at least 1"),
        ({"dim": 2048}, "--dim must be at most 1024"),
        ({"index_dtype": "int32", "rows": 2**31}, "below 2^31"),
        ({"index_dtype": "int32", "batch": 2**20, "pooling": 2**11}, "below 2^31"),
    ],
)
def test_what_does_not_fit_is_said_in_one_sentence(fields, words):
    with pytest.raises(ConfigError) as error:
        Config(**fields)
    assert words in str(error.value)
    assert "\n" not in str(error.value)
