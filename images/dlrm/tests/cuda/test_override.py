"""The operator switch, through PyTorch's real dispatcher: here for the CPU, on a GPU for CUDA."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from dlrm_inference.cuda import override  # noqa: E402
from torch.nn import functional as F  # noqa: E402

pytestmark = pytest.mark.torch

OFFSETS = [0, 2, 2, 5, 9]  # four bags, one empty; the last entry closes the last bag
IDS = [1, 2, 3, 4, 4, 9, 0, 0, 7]


class Kernel:
    """A bag sum that is not PyTorch's, and that remembers its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, torch.dtype, list[int]]] = []

    def __call__(self, weight, indices, offsets, mode):
        self.calls.append((mode, indices.dtype, offsets.tolist()))
        lengths = offsets.diff().long()
        bag = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
        sums = torch.zeros(len(lengths), weight.shape[1], dtype=weight.dtype)
        sums.index_add_(0, bag, weight.detach()[indices.long()])
        return sums / lengths.clamp(min=1)[:, None] if mode == "mean" else sums


@pytest.fixture
def kernel():
    yield Kernel()
    override.uninstall()


@pytest.fixture
def weight():
    return torch.randn(10, 6, generator=torch.Generator().manual_seed(3), requires_grad=True)


def ids(dtype=torch.int64, device="cpu"):
    return torch.tensor(IDS, dtype=dtype, device=device)


def bounds(last: bool, dtype=torch.int64, device="cpu"):
    return torch.tensor(OFFSETS if last else OFFSETS[:-1], dtype=dtype, device=device)


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_forward_and_backward_are_pytorchs(kernel, weight, mode, last, dtype):
    def both():
        weight.grad = None
        result = F.embedding_bag(
            ids(dtype), weight, bounds(last, dtype), mode=mode, include_last_offset=last
        )
        (result * torch.arange(result.numel()).view_as(result)).sum().backward()
        return result.detach(), weight.grad.clone()

    expected, gradient = both()
    assert kernel.calls == []
    with override.embedding_bag_variant("ours", forward=kernel, key="CPU"):
        result, ours = both()
    assert kernel.calls == [(mode, dtype, OFFSETS)]
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(ours, gradient)
    both()
    assert len(kernel.calls) == 1


@pytest.mark.parametrize(("sparse", "by_frequency"), [(False, False), (True, False), (False, True)])
def test_arguments_of_the_backward_pass_alone_pass_through(kernel, weight, sparse, by_frequency):
    def gradient():
        weight.grad = None
        F.embedding_bag(
            ids(), weight, bounds(False), mode="sum", sparse=sparse, scale_grad_by_freq=by_frequency
        ).sum().backward()
        return weight.grad.to_dense()

    expected = gradient()
    with override.embedding_bag_variant("ours", forward=kernel, key="CPU"):
        torch.testing.assert_close(gradient(), expected)
    assert len(kernel.calls) == 1


def test_any_model_uses_it_and_two_dimensional_ids_too(kernel):
    module = torch.nn.EmbeddingBag(10, 6, mode="sum")
    square = torch.tensor([[1, 2, 3], [4, 5, 6]])
    expected = module(square)
    with override.embedding_bag_variant("ours", forward=kernel, key="CPU"), torch.no_grad():
        result = module(square)
    assert kernel.calls == [("sum", torch.int64, [0, 3, 6])]
    torch.testing.assert_close(result, expected)


def test_frozen_tables_take_the_forward_only_operator(kernel, weight):
    frozen = weight.detach()
    with override.embedding_bag_variant("ours", forward=kernel, key="CPU"):
        result = F.embedding_bag(ids(), frozen, bounds(True), mode="sum", include_last_offset=True)
    assert len(kernel.calls) == 1
    assert not result.requires_grad


def test_the_outputs_for_the_backward_pass_have_pytorchs_shapes(kernel, weight):
    for last in (True, False):
        native = torch._embedding_bag(weight, ids(), bounds(last), include_last_offset=last)
        with override.embedding_bag_variant("ours", forward=kernel, key="CPU"):
            result = torch._embedding_bag(weight, ids(), bounds(last), include_last_offset=last)
        assert result[1].tolist() == [0, 0, 2, 2, 2, 3, 3, 3, 3]
        assert result[2].tolist() == [2, 0, 3, 4]  # on a CPU PyTorch leaves it zero for sums
        assert result[2].shape == native[2].shape
        assert result[1].dtype == result[2].dtype == torch.int64


def test_no_indices_at_all(kernel, weight):
    nothing = torch.zeros(0, dtype=torch.int64)
    with override.embedding_bag_variant("ours", forward=kernel, key="CPU"):
        result = F.embedding_bag(nothing, weight, torch.zeros(3, dtype=torch.int64), mode="sum")
        result.sum().backward()
    assert result.tolist() == [[0.0] * 6] * 3
    assert not weight.grad.any()


def test_mixed_index_types_are_promoted(kernel, weight):
    with override.embedding_bag_variant("ours", forward=kernel, key="CPU"):
        F.embedding_bag(ids(torch.int32), weight, bounds(False), mode="sum")
    assert kernel.calls == [("sum", torch.int64, OFFSETS)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"mode": "max"}, "ours has no mode 'max'; fix: use mode 'sum' or 'mean'"),
        ({"mode": "sum", "per_sample_weights": torch.ones(9)}, "takes no per_sample_weights; fix"),
        ({"mode": "sum", "padding_idx": 3}, "takes no padding_idx; fix"),
    ],
)
def test_what_the_kernel_lacks_is_an_error_that_says_so(kernel, weight, arguments, words):
    with (
        override.embedding_bag_variant("ours", forward=kernel, key="CPU"),
        pytest.raises(override.UnsupportedCall, match=words),
    ):
        F.embedding_bag(ids(), weight.detach(), bounds(False), **arguments)
    assert kernel.calls == []


def test_tables_of_other_types_and_layouts_are_refused(kernel, weight):
    with override.embedding_bag_variant("ours", forward=kernel, key="CPU"):
        with pytest.raises(override.UnsupportedCall, match="float32, not float64; fix"):
            F.embedding_bag(ids(), weight.double(), bounds(False), mode="sum")
        with pytest.raises(override.UnsupportedCall, match=r"fix: weight\.contiguous"):
            F.embedding_bag(ids(), weight.t().contiguous().t(), bounds(False), mode="sum")
        with pytest.raises(override.UnsupportedCall, match=r"fix: indices\.contiguous"):
            torch._embedding_bag_forward_only(weight, ids().repeat(2)[::2], bounds(False))
    assert kernel.calls == []


def test_install_replaces_and_uninstall_restores(kernel, weight):
    def call():
        return F.embedding_bag(ids(), weight.detach(), bounds(False), mode="sum")

    other = Kernel()
    override.install("first", forward=kernel, key="CPU")
    override.install("second", forward=other, key="CPU")
    assert override.active_variant() == "second"
    call()
    assert (len(kernel.calls), len(other.calls)) == (0, 1)
    with (
        pytest.raises(RuntimeError, match="'second' is installed already"),
        override.embedding_bag_variant("third", forward=kernel, key="CPU"),
    ):
        pass
    override.uninstall()
    override.uninstall()
    assert override.active_variant() == ""
    call()
    assert (len(kernel.calls), len(other.calls)) == (0, 1)


def test_a_failing_block_restores_the_operator(kernel):
    with (
        pytest.raises(ZeroDivisionError),
        override.embedding_bag_variant("ours", forward=kernel, key="CPU"),
    ):
        raise ZeroDivisionError
    assert override.active_variant() == ""


def test_stock_changes_nothing(weight):
    with override.embedding_bag_variant("stock"):
        assert override.active_variant() == ""


def test_a_pinning_variant_pins_before_every_gather_and_never_nothing(kernel, weight):
    frozen = weight.detach()
    with pytest.raises(override.UnsupportedCall, match=r"l2p pins hot rows; fix: give hot_rows"):
        override.pin_first("l2p", kernel, {})
    order = []
    pins = {frozen.data_ptr(): lambda: order.append(len(kernel.calls))}
    forward = override.pin_first("l2p", kernel, pins)
    with override.embedding_bag_variant("l2p", forward=forward, key="CPU"):
        for _ in range(2):
            F.embedding_bag(ids(), frozen, bounds(False), mode="sum")
        with pytest.raises(override.UnsupportedCall, match="knows no hot rows of this table"):
            F.embedding_bag(ids(), frozen.clone(), bounds(False), mode="sum")
    assert order == [0, 1]
    assert len(kernel.calls) == 2


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["base", "optmt", "rpf", "smpf", "lmpf", "l1dpf", "best"])
@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("last", [True, False])
def test_every_variant_serves_a_model_on_a_gpu(name, mode, last):
    weight = torch.randn(1000, 128, device="cuda", requires_grad=True)
    lengths = torch.randint(0, 40, (50,), generator=torch.Generator().manual_seed(4))
    ends = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).cuda()
    rows = torch.randint(0, 1000, (int(lengths.sum()),), device="cuda")
    offsets = ends if last else ends[:-1].clone()

    def both():
        weight.grad = None
        result = F.embedding_bag(rows, weight, offsets, mode=mode, include_last_offset=last)
        result.square().sum().backward()
        return result.detach(), weight.grad.clone()

    expected, gradient = both()
    with override.embedding_bag_variant(name):
        assert override.active_variant() == name
        result, ours = both()
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours, gradient, rtol=1e-4, atol=1e-3)


def test_an_unknown_variant_names_the_known_ones():
    with pytest.raises(KeyError, match="best"):
        override.install("bets")


@pytest.mark.gpu
def test_pinning_variants_want_hot_rows_and_then_serve_a_model():
    weight = torch.randn(1000, 128, device="cuda")
    rows = torch.randint(0, 1000, (300,), device="cuda")
    offsets = torch.arange(0, 300, 10, device="cuda")
    expected = F.embedding_bag(rows, weight, offsets, mode="sum")
    hot = torch.arange(100, device="cuda")
    for name in ("l2p", "rpf_l2p"):
        with pytest.raises(override.UnsupportedCall, match="pins hot rows"):
            override.install(name)
        with override.embedding_bag_variant(name, hot_rows=[(weight, hot)]):
            result = F.embedding_bag(rows, weight, offsets, mode="sum")
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["stock21", "fbgemm"])
def test_the_rivals_serve_a_model_too(name):
    from dlrm_inference.cuda.fbgemm import Fbgemm
    from dlrm_inference.cuda.stock21 import Stock21

    capability = torch.cuda.get_device_capability()
    reason = {
        "stock21": lambda: Stock21().why_unsupported(capability),
        "fbgemm": lambda: Fbgemm().why_unsupported(),
    }[name]()
    if reason:
        pytest.skip(reason)
    weight = torch.randn(1000, 128, device="cuda")
    rows = torch.randint(0, 1000, (300,), device="cuda")
    offsets = torch.arange(0, 300, 10, device="cuda")
    expected = F.embedding_bag(rows, weight, offsets, mode="sum")
    with override.embedding_bag_variant(name):
        result = F.embedding_bag(rows, weight, offsets, mode="sum")
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
