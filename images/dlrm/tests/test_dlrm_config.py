import pytest
from dlrm_inference.config import Config, ConfigError, paper_bound


def test_defaults_are_the_papers_sizes():
    config = Config()
    assert (config.tables, config.rows, config.dim) == (12, 500_000, 128)
    assert (config.batch, config.pooling, config.draws) == (2048, 150, 307_200)
    assert config.row_bytes == 512
    assert config.samples >= 50
    assert paper_bound(400) == 0.05


@pytest.mark.parametrize(
    ("dtype", "row_bytes"), [("float32", 400), ("float16", 200), ("bfloat16", 200)]
)
def test_a_row_has_the_bytes_of_its_type(dtype, row_bytes):
    assert Config(dtype=dtype, dim=100).row_bytes == row_bytes


def test_draws_are_of_one_batch():
    assert Config(batch=7, pooling=5, batches=3, tables=2).draws == 35


@pytest.mark.parametrize(
    "name", ["tables", "rows", "dim", "batch", "pooling", "batches", "samples", "threads"]
)
def test_there_is_at_least_one_of_each(name):
    assert getattr(Config(**{name: 1}), name) == 1
    with pytest.raises(ConfigError, match=f"--{name} 0 is out of range"):
        Config(**{name: 0})


@pytest.mark.parametrize("fields", [{"rows": 2**31 - 1}, {"batch": 2**30, "pooling": 1}])
def test_int32_holds_rows_and_draws_below_its_end(fields):
    assert Config(index_dtype="int32", **fields).index_dtype == "int32"


@pytest.mark.parametrize("fields", [{"dim": 1024}, {"dim": 1}, {"warmup": 0}, {"seed": 0}])
def test_bounds_belong_to_what_fits(fields):
    assert Config(**fields)


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
    assert Config(launch="all_tables").launches == ("all_tables",)
    assert Config(experiment="static", variants=()).variants == ()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"variants": ("rfp",)}, "--variants rfp is unknown"),
        ({"variants": ("base", "base")}, "names one twice"),
        ({"variants": ()}, "--variants is empty"),
        ({"dataset": "hihg_hot"}, "did you mean 'high_hot'?"),
        ({"dataset": "zzz"}, "one of one_item, high_hot"),
        ({"device": "tpu"}, "--device tpu is unknown"),
        ({"l2_mode": "hint,oops"}, "--l2-mode oops is unknown"),
        ({"rows": 0}, "--rows 0 is out of range; fix: at least 1"),
        ({"warmup": -1}, "--warmup -1 is out of range; fix: at least 0"),
        ({"distances": (2, 0)}, "--distances 0 is out of range; fix: at least 1"),
        ({"dim": 2048}, "--dim 2048 is out of range; fix: at least 1, at most 1024"),
        ({"dim": 1025}, "--dim 1025 is out of range"),
        ({"seed": -1}, "--seed -1 is out of range"),
        ({"index_dtype": "int32", "rows": 2**31}, "below 2^31"),
        ({"index_dtype": "int32", "batch": 2**30, "pooling": 2}, "below 2^31"),
    ],
)
def test_what_does_not_fit_is_said_in_one_sentence(fields, words):
    with pytest.raises(ConfigError) as error:
        Config(**fields)
    assert words in str(error.value)
    assert "\n" not in str(error.value)
