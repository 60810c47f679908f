"""The six models: sizes that are known, and what each mode does."""

from __future__ import annotations

import math

import pytest
import torch
from pasta_workloads.models.gpt2 import Gpt2
from pasta_workloads.models.sizes import (
    MODELS,
    PUBLISHED,
    SIZES,
    image_size,
    size_of,
    text_size,
)
from pasta_workloads.models.whisper import Whisper
from pasta_workloads.workload import MODES, build, build_batch, build_model
from torch.nn import functional

# torchvision's AlexNet with 10 classes; its ResNets with 10 classes and a bias in each shortcut;
# BERT-base without pooler and position weights; OpenAI's GPT-2; Whisper small without its buffer.
PARAMETERS = {
    "alexnet": 57_044_810, "resnet18": 11_181_642 + 896, "resnet34": 21_289_802 + 896,
    "bert": 12 * 7_087_872 + (30522 + 3) * 768, "gpt2": 124_439_808,
    "whisper": 241_734_912 - 1500 * 768,
}  # fmt: skip
OUTPUTS = {
    "alexnet": (128, 10), "resnet18": (32, 10), "resnet34": (32, 10), "bert": (16, 768, 378),
    "gpt2": (), "whisper": (16, 148, 51865),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_full_size(name: str) -> None:
    workload = build(name, "test", "full", "meta")
    assert sum(p.numel() for p in workload.model.parameters()) == PARAMETERS[name]
    assert tuple(workload.iteration().shape) == OUTPUTS[name]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("size", SIZES)
def test_every_size_can_be_built_and_run(name: str, size: str) -> None:
    assert build(name, "step", size, "meta").iteration().shape == ()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", MODELS)
def test_modes(name: str, mode: str) -> None:
    """Which modes learn, and which keep gradients, as the artifact's scripts do."""
    workload = build(name, mode, "tiny", "cpu")
    before = {key: value.clone() for key, value in workload.model.named_parameters()}
    result = workload.iteration()
    learns = mode in ("step", "step_bf16") or (mode == "train" and name in ("alexnet", "gpt2"))
    changed = any(
        not torch.equal(before[key], value) for key, value in workload.model.named_parameters()
    )
    assert changed == learns
    assert result.isfinite().all()
    tests = mode in ("test", "test_bf16")
    assert result.requires_grad == (not tests or name in ("gpt2", "whisper"))
    assert workload.model.training == (not tests or name == "gpt2")
    assert result.dtype == (torch.bfloat16 if mode.endswith("bf16") else torch.float32)


def test_the_whole_of_whisper_learns_in_step_alone() -> None:
    for mode, learns in (("train", False), ("step", True)):
        workload = build("whisper", mode, "tiny", "cpu")
        before = workload.model.get_parameter("encoder.first.weight").clone()
        workload.iteration()
        after = workload.model.get_parameter("encoder.first.weight")
        assert torch.equal(before, after) != learns


@pytest.mark.parametrize("name", MODELS)
def test_in_bf16_the_same_is_computed_less_finely(name: str) -> None:
    plain, halved = (build(name, mode, "tiny", "cpu") for mode in ("test", "test_bf16"))
    for mine, theirs in zip(plain.model.parameters(), halved.model.parameters(), strict=True):
        assert torch.equal(mine.bfloat16(), theirs)
    kinds = {part.dtype for part in halved.batch}
    assert kinds <= {torch.bfloat16, torch.int64}
    plain.model.eval()  # GPT-2's inference has no dropout either
    apart = (plain.iteration() - halved.iteration().float()).abs().mean()
    assert 0 < apart < 0.05 * plain.iteration().abs().mean()


def test_published_weights_are_whispers_in_fp16() -> None:
    plain, published = (build(name, "test", "tiny", "cpu") for name in ("whisper", PUBLISHED))
    assert plain.load is None
    assert published.load is not None
    published.load()
    parts = zip(plain.model.parameters(), published.model.parameters(), strict=True)
    assert all(torch.equal(mine.half().float(), theirs) for mine, theirs in parts)
    assert published.iteration().shape == plain.iteration().shape


def test_a_seed_says_all() -> None:
    first, again = (build("bert", "test", "tiny", "cpu", seed=7).iteration() for _ in range(2))
    other = build("bert", "test", "tiny", "cpu", seed=8).iteration()
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_batches_have_the_lengths_of_the_artifact() -> None:
    with torch.device("meta"):
        assert build_batch("bert", "full")[0].shape == (16, 378)
        assert build_batch("bert", "full")[1].shape == (16, 768, 378)
        assert build_batch("gpt2", "full")[0].shape == (8, 487)
        assert build_batch("whisper", "full")[0].shape == (16, 80, 3000)
        assert build_batch("whisper", "full")[1].shape == (16, 148)
        assert build_batch("alexnet", "full")[0].shape == (128, 3, 512, 512)


def test_gpt2_equals_the_fused_formulation() -> None:
    size = text_size("gpt2", "tiny")
    torch.manual_seed(3)
    model = Gpt2(size)
    ids = torch.randint(size.vocabulary, (2, size.length))
    labels = torch.randint(size.vocabulary, (2, size.length))

    def norm(part: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, (size.width,), part.weight, part.bias, part.epsilon)

    def project(part: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, part.weight.t(), part.bias)

    x = model.tokens(ids) + model.positions.weight[: size.length]
    for layer in model.layers:
        parts = project(layer.attention.inputs, norm(layer.norms[0], x)).chunk(3, -1)
        query, key, value = (
            part.view(2, size.length, size.heads, -1).transpose(1, 2) for part in parts
        )
        found = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + project(layer.attention.output, found.transpose(1, 2).flatten(2))
        inner = functional.gelu(project(layer.up, norm(layer.norms[1], x)), approximate="tanh")
        x = x + project(layer.down, inner)
    logits = functional.linear(norm(model.norm, x), model.tokens.weight)
    expected = functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    torch.testing.assert_close(model(ids, labels), expected, rtol=1e-4, atol=1e-5)


def test_whispers_decoder_sees_no_later_token() -> None:
    size = size_of("whisper", "tiny")
    torch.manual_seed(3)
    model = Whisper(size).eval()
    mels = torch.rand(1, size.mels, size.frames)
    ids = torch.randint(size.vocabulary, (1, size.length))
    other = ids.clone()
    other[0, -1] = (ids[0, -1] + 1) % size.vocabulary
    with torch.no_grad():
        first, second = model(mels, ids), model(mels, other)
    torch.testing.assert_close(first[:, :-1], second[:, :-1])
    assert not torch.allclose(first[:, -1], second[:, -1])


def test_berts_gelu_is_the_tanh_approximation() -> None:
    from pasta_workloads.models.bert import gelu

    x = torch.linspace(-4, 4, 101)
    torch.testing.assert_close(gelu(x), functional.gelu(x, approximate="tanh"))
    assert math.isclose(float(gelu(torch.tensor(0.0))), 0.0)


def test_wrong_names() -> None:
    with pytest.raises(KeyError):
        build_model("vgg", "full")
    with pytest.raises(KeyError):
        build("bert", "sleep", "tiny", "cpu")
    with pytest.raises(TypeError):
        image_size("bert", "full")
