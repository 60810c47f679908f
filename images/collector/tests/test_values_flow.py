"""What operations did to memory, the value flow graph, its findings and its picture."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np
import pytest
from accel_trace.values.accesses import READ, WRITE, Accesses, from_rows
from accel_trace.values.findings import Finding, coarse, narrowed
from accel_trace.values.flow import Graph, build, prune
from accel_trace.values.layout import place
from accel_trace.values.names import kernel_name
from accel_trace.values.picture import dot, page
from accel_trace.values.shadow import (
    DOWNLOAD,
    KERNEL,
    READS_UNSEEN,
    WRITES_UNSEEN,
    Effect,
    Shadow,
    duplicates,
)
from hypothesis import given
from hypothesis import strategies as st

N = 1000
L, R, P = 0x1000, 0x9000, 0x11000


def octets(values: object) -> np.ndarray:
    return np.asarray(values, "<i4").view(np.uint8)


def kernel(*accesses: tuple[int, int, int]) -> Accesses:
    """Accesses of 4 bytes: address, value, flags."""
    return from_rows(
        [{"address": a, "low": v, "flags": f, "size": 4, "unit": 4} for a, v, f in accesses]
    )


def effect_of(shadow: Shadow, context: str, kind: str = "") -> Effect:
    (found,) = [e for e in shadow.effects if e.context == context and (not kind or e.kind == kind)]
    return found


@pytest.fixture
def program() -> Shadow:
    """The authors' sample, coded anew: l = r = 0..999, copied, copied again, summed."""
    shadow, numbers = Shadow(), octets(np.arange(N))
    for address, name in ((L, "dl"), (R, "dr"), (P, "dp")):
        shadow.alloc(address, 4 * N, name)
    shadow.upload(L, numbers, "first l")
    shadow.upload(R, numbers, "first r")
    return shadow


def test_equal_copies_make_two_objects_the_same(program: Shadow) -> None:
    ((left, right, how),) = duplicates(program.effects)
    assert (left.context, right.context, how) == ("dl", "dr", "total")


def test_a_second_copy_is_redundant(program: Shadow) -> None:
    program.upload(L, octets(np.arange(N)), "second l")
    effect = effect_of(program, "second l")
    assert (effect.written, effect.unchanged) == (4000, 4000)
    assert (effect.elements, effect.unchanged_elements) == (N, N)


def test_a_copy_of_half_on_the_device(program: Shadow) -> None:
    program.copy(L, R, 2 * N, "half")
    effect = effect_of(program, "half")
    assert (effect.written, effect.unchanged) == (2000, 2000)
    graph = build(program.effects)
    (write,) = [e for e in graph.edges if e.kind == "write" and e.bytes == 2000]
    assert (write.redundancy, write.overwrite, write.thing) == (1.0, 0.5, "dl")
    (read,) = [
        e for e in graph.edges if e.target == write.target and e.kind == "read" and e.thing == "dl"
    ]
    assert graph.nodes[read.source].context == "first r"


def test_kernels_that_write_what_is_there(program: Shadow) -> None:
    sums = [(P + 4 * i, 2 * i, WRITE) for i in range(N)]
    program.kernel(kernel(*sums), "sum")
    assert effect_of(program, "sum").unchanged == 0  # nobody had written them
    program.kernel(kernel(*((a, v, READ) for a, v, _ in sums), *sums), "itself")
    same = effect_of(program, "itself")
    assert (same.read, same.written, same.unchanged) == (4000, 4000, 4000)
    program.kernel(kernel(*sums[1::2]), "odd")
    odd = effect_of(program, "odd")
    assert (odd.written, odd.unchanged, odd.intervals) == (2000, 2000, 500)
    assert (odd.elements, odd.unchanged_elements) == (500, 500)


def test_memory_that_nobody_wrote_has_no_value(program: Shadow) -> None:
    program.fill(P, b"\0", 4 * N, "first fill")
    program.fill(P, b"\0", 4 * N, "second fill")
    assert effect_of(program, "first fill").unchanged == 0
    assert effect_of(program, "second fill").unchanged == 4 * N


def test_a_download_is_compared_with_the_host(program: Shadow) -> None:
    program.download(L, octets(np.arange(N)), "unchanged")
    program.download(R, octets(np.zeros(N)), "new")
    assert effect_of(program, "unchanged").unchanged == 4000
    assert effect_of(program, "new").unchanged == 4 + 256 + 2 * N  # bytes that are 0
    graph = build(program.effects)
    assert sorted((e.kind, e.unchanged) for e in graph.edges if e.kind == "sink") == [
        ("sink", effect_of(program, "new").unchanged), ("sink", 4000),
    ]  # fmt: skip


def test_an_atomic_leaves_what_nobody_knows(program: Shadow) -> None:
    program.kernel(kernel((L, 0, READ | WRITE)), "atomic")
    effect = effect_of(program, "atomic")
    assert (effect.read, effect.written, effect.digest) == (4, 0, "")
    program.upload(L, octets(np.arange(N)), "again")
    assert effect_of(program, "again").unchanged == 3996


def test_what_is_overwritten_unread_is_dead() -> None:
    shadow = Shadow()
    shadow.alloc(L, 400, "x")
    shadow.fill(L, b"\0", 400, "fill")
    shadow.kernel(kernel(*((L + 4 * i, 5, WRITE) for i in range(100))), "produce")
    shadow.kernel(kernel(*((L + 4 * i, 5, READ) for i in range(100))), "consume")
    shadow.fill(L, b"\1", 400, "last")
    assert effect_of(shadow, "fill").dead == 400
    assert effect_of(shadow, "produce").dead == 0
    assert [(f.name, f.context, f.bound) for f in coarse(shadow.effects)] == [
        ("dead_write", "fill", None)
    ]


def test_findings_say_what_is_at_stake_and_bound_the_gain() -> None:
    shadow = Shadow()
    shadow.alloc(L, 400, "x")
    zeros, ones = np.zeros(400, np.uint8), np.ones(400, np.uint8)
    for data in (zeros, ones, ones, zeros):
        shadow.upload(L, data, "loop")
        shadow.download(L, ones * 7, "back")
    first, second = coarse(shadow.effects)
    assert (first.name, first.at_stake, first.of, first.times) == ("zero_upload", 800, 1600, 2)
    assert (second.name, second.at_stake, second.bound) == ("redundant_upload", 400, 4 / 3)
    assert "at most 1.33x" in second.sentence()
    assert "copy only when" in second.sentence()
    assert narrowed(4, 1000) == 750
    assert Finding("heavy_type", "c", "t", 750, 1000).bound == 4


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("upload"), st.integers(0, 1), st.lists(st.integers(0, 1), min_size=8,
                                                                 max_size=8)),
        st.tuples(st.just("fill"), st.integers(0, 1), st.integers(0, 1)),
        st.tuples(st.just("copy"), st.integers(0, 1), st.integers(0, 8)),
        st.tuples(st.just("kernel"), st.integers(0, 1),
                  st.lists(st.tuples(st.integers(0, 7), st.integers(0, 1), st.booleans()),
                           max_size=6)),
    ),
    max_size=25,
)  # fmt: skip


@given(OPERATIONS)
def test_effects_are_those_of_plain_bytes(operations: list[tuple]) -> None:
    shadow = Shadow()
    memory: list[list[int | None]] = [[None] * 8, [None] * 8]
    for address in (0, 100):
        shadow.alloc(address, 8, f"at {address}")
    dead = [[-1] * 8, [-1] * 8]  # who wrote a byte that nobody has read
    plain: list[tuple[int, int]] = []
    died: list[int] = []
    for kind, which, what in operations:
        own, other, address = memory[which], memory[1 - which], 100 * which
        writes: dict[int, int] = {}
        if kind == "upload":
            shadow.upload(address, np.array(what, np.uint8), kind)
            writes = dict(enumerate(what))
        elif kind == "fill":
            shadow.fill(address, bytes([what]), 8, kind)
            writes = dict.fromkeys(range(8), what)
        elif kind == "copy":
            shadow.copy(address, 100 - address, what, kind)
            for byte in range(what):
                dead[1 - which][byte] = -1
            writes = dict(enumerate(other[:what]))
        else:
            rows = [
                {
                    "address": address + i,
                    "low": v,
                    "flags": READ if r else WRITE,
                    "size": 1,
                    "unit": 1,
                }
                for i, v, r in what
            ]
            shadow.kernel(from_rows(rows), kind)
            if not rows:
                continue
            for i, _, r in what:
                if r:
                    dead[which][i] = -1
            writes = {i: v for i, v, r in what if not r}
        plain.append((len(writes), sum(own[i] == v is not None for i, v in writes.items())))
        died.append(0)
        for i, v in writes.items():
            if dead[which][i] >= 0:
                died[dead[which][i]] += 1
            own[i], dead[which][i] = v, len(plain) - 1
    effects = [effect for effect in shadow.effects if effect.kind != "alloc"]
    assert [(e.written, e.unchanged) for e in effects] == plain
    assert [e.dead for e in effects] == died
    graph = build(shadow.effects)
    writes = [edge for edge in graph.edges if edge.kind == "write"]
    assert sum(edge.bytes for edge in writes) == sum(n for n, _ in plain) == graph.bytes
    assert sum(edge.unchanged for edge in writes) == sum(n for _, n in plain)
    spots = place(graph)
    assert set(spots) == set(graph.nodes)
    assert len(set(spots.values())) == len(spots), "no two nodes on one place"


# ---- the graph and its picture -------------------------------------------------------------------


def network(layers: int) -> Shadow:
    """A chain of layers that each fills its output with zeros before a kernel overwrites it."""
    shadow = Shadow()
    shadow.alloc(0, 256, "input")
    shadow.upload(0, np.arange(256).astype(np.uint8), "load image")
    for n in range(1, layers + 1):
        shadow.alloc(1000 * n, 256, f"output of layer {n}")
    for _ in range(2):
        for n in range(1, layers + 1):
            shadow.fill(1000 * n, b"\0", 256, f"fill_cpu <layer {n}>")
            rows = [(1000 * (n - 1) + 4 * i, 0, READ) for i in range(64)]
            rows += [(1000 * n + 4 * i, n, WRITE) for i in range(64)]
            shadow.kernel(kernel(*rows), f"gemm_nn_kernel of layer {n}")
        shadow.download(1000 * layers, np.zeros(256, np.uint8) + 9, "result")
    return shadow


def test_repeats_merge_and_the_graph_shrinks() -> None:
    graph = build(network(3).effects)
    counts = {node.context: node.count for node in graph.nodes.values()}
    assert counts["gemm_nn_kernel of layer 2"] == 2
    small = prune(graph, redundancy=0.99, share=0.08)
    assert 0 < len(small.edges) < len(graph.edges)
    ends = {n for edge in small.edges for n in (edge.source, edge.target)}
    assert set(small.nodes) == ends
    assert prune(graph, 2.0, 2.0) == Graph()


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.nodes: list[str] = []
        self.rows: list[str] = []
        self.edges = 0
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        words = dict(attrs)
        self.outside += [str(words[n]) for n in ("src", "href") if n in words]
        if tag == "g" and "n " in f"{words.get('class', '')} ":
            self.nodes.append(str(words["id"]))
        self.edges += tag == "path" and words.get("class") == "e"
        if "data-node" in words:
            self.rows.append(f"n{words['data-node']}")


@pytest.mark.parametrize("layers", [1, 165])
def test_the_page_holds_every_node_and_needs_no_network(layers: int) -> None:
    shadow = network(layers)
    graph, findings = build(shadow.effects), coarse(shadow.effects)
    reader = Reader()
    text = page(graph, findings, 'a <title> & "more"')
    reader.feed(text)
    # host, input, load, result, and three for each layer
    assert len(reader.nodes) == len(graph.nodes) == 4 + 3 * layers
    assert reader.edges == len(graph.edges)
    assert len(reader.rows) == len(findings) == layers, "one dead fill for each layer"
    assert set(reader.rows) <= set(reader.nodes)
    assert reader.outside == []
    assert "<!--" not in text
    assert "a &lt;title&gt; &amp; &quot;more&quot;" in text
    assert "fill_cpu &lt;layer 1&gt;" in text
    numbers = re.findall(r'data-x="([\d.-]+)" data-y="([\d.-]+)"', text)
    assert len(set(numbers)) == len(graph.nodes)


def test_words_for_graphviz_are_escaped() -> None:
    shadow = Shadow()
    shadow.alloc(0, 4, 'x "quoted" \\ y')
    shadow.fill(0, b"\0", 4, "f")
    text = dot(build(shadow.effects))
    assert 'x \\"quoted\\" \\\\ y' in text
    assert text.count("->") == 1
    assert text.count("{") == text.count("}") == 1


def test_kinds_that_the_graph_knows() -> None:
    graph = build(network(2).effects)
    assert {node.kind for node in graph.nodes.values()} == {
        "alloc", "upload", "fill", KERNEL, DOWNLOAD, "host",
    }  # fmt: skip


def writes(*pairs: tuple[int, int]) -> Accesses:
    """One byte each: address and value."""
    return from_rows([
        {"address": at, "low": value, "flags": WRITE, "size": 1, "unit": 1} for at, value in pairs
    ])  # fmt: skip


def unchanged(shadow: Shadow) -> int:
    return shadow.effects[-1].unchanged


def test_what_may_have_been_written_unseen_is_not_known() -> None:
    shadow = Shadow()
    shadow.alloc(0, 8, "here")
    shadow.fill(0, b"\7", 8, "fill")
    shadow.kernel(writes((0, 7)), "kernel", READS_UNSEEN)
    assert unchanged(shadow) == 1, "reads change nothing"
    assert shadow.effects[1].dead == 0, "who reads unseen may have read it"
    shadow.kernel(writes((0, 7), (1, 7)), "kernel", WRITES_UNSEEN)
    assert unchanged(shadow) == 2, "what it wrote itself was compared before"
    assert shadow.effects[-1].digest == ""
    shadow.fill(0, b"\7", 8, "fill")
    assert unchanged(shadow) == 0
    shadow.fill(0, b"\7", 8, "fill")
    assert unchanged(shadow) == 8, "it is known again"
    shadow.lose(0, 3)
    shadow.fill(0, b"\7", 8, "fill")
    assert unchanged(shadow) == 5


def test_what_the_cpu_may_write_is_never_known() -> None:
    shadow = Shadow()
    shadow.alloc(0, 8, "managed", shared=True)
    for _ in range(2):
        shadow.fill(0, b"\0", 8, "fill")
        assert unchanged(shadow) == 0


def test_memory_beyond_the_cap_is_said_and_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accel_trace.values.shadow.MOST", 10)
    shadow = Shadow()
    shadow.alloc(0, 8, "first")
    shadow.alloc(100, 8, "too much")
    assert (shadow.unfollowed, len(shadow.things())) == (8, 1)
    shadow.fill(100, b"\0", 8, "fill")
    shadow.kernel(writes((100, 0)), "kernel")
    assert (shadow.outside, len(shadow.effects)) == (9, 1)
    shadow.free(0)
    shadow.alloc(100, 8, "there is room again")
    assert len(shadow.things()) == 1


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, "
         "std::array<char*, 1ul> >(int, at::native::FillFunctor<float>)",
         "vectorized_elementwise_kernel<FillFunctor>"),
        ("void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<"
         "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}>>(int)",
         "elementwise_kernel<direct_copy_kernel_cuda>"),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::"
         "(anonymous namespace)::TensorListMetadata<1>, at::native::(anonymous namespace)::"
         "BinaryOpScalarTensorFunctor<float, 1, 1, 0> >(int)",
         "multi_tensor_apply_kernel<BinaryOpScalarTensorFunctor>"),
        ("void at::native::(anonymous namespace)::plain(int)", "plain"),
        ("void step<int>(int const*, int)", "step"), ("derive(float*)", "derive"),
        ("", ""),
    ],
)  # fmt: skip
def test_a_kernel_is_told_from_others_of_its_template(name: str, short: str) -> None:
    assert kernel_name(name) == short
