import json
import re

import pytest
from rap_training.plan.builtin import builtin
from rap_training.plan.files import dump, load, parse
from rap_training.plan.generator import generate
from rap_training.plan.graph import PlanError


def good():
    return {
        "name": "mine",
        "columns": [
            {"name": "d", "kind": "dense", "null_rate": 0.1},
            {"name": "s", "kind": "sparse", "width": 3, "ragged": True, "ids": 100},
        ],
        "nodes": [
            {"name": "df", "op": "fill_null", "input": "d", "parameters": {"value": 0}},
            {"name": "db", "op": "bucketize", "input": "df", "parameters": {"borders": [1, 2.5]}},
            {"name": "sf", "op": "fill_null", "input": "s", "parameters": {"value": 0}},
            {"name": "sh", "op": "sigrid_hash", "input": "sf",
             "parameters": {"salt": 0, "modulus": 50}},
        ],
        "dense": ["df"],
        "sparse": [{"node": "sh", "rows": 50}, {"node": "db", "rows": 3}],
    }  # fmt: skip


@pytest.mark.parametrize("number", range(4))
def test_builtin_plans_come_back_the_same(number):
    plan = builtin(number)
    assert parse(dump(plan)) == plan


@pytest.mark.parametrize("seed", range(5))
def test_random_plans_come_back_the_same(seed, tmp_path):
    plan = generate(dense=5, sparse=5, depth=10, width=9, seed=seed)
    path = tmp_path / "plan.json"
    path.write_text(dump(plan))
    assert load(path) == plan
    assert dump(load(path)) == dump(plan)


def test_defaults_may_be_left_out():
    plan = parse(json.dumps(good()))
    assert plan.over_arch == (1024, 1024, 512, 256, 1)
    assert plan.column["d"].width == 1
    assert plan.node["db"].parameters == {"borders": (1, 2.5)}
    assert "null_rate" not in json.loads(dump(plan))["columns"][1]


def change(*path, to=None, drop=False):
    def edit(data):
        for key in path[:-1]:
            data = data[key]
        if drop:
            del data[path[-1]]
        else:
            data[path[-1]] = to

    return edit


def operator(column, op, **parameters):
    """Appends a node behind the filled column."""
    node = {"name": "more", "op": op, "input": f"{column}f", "parameters": parameters}
    return lambda data: data["nodes"].append(node)


FAULTS = {
    "no name": (change("name", drop=True), "the plan lacks the key name; fix: add it"),
    "empty name": (change("name", to=""), 'the plan: name is ""; fix: a word'),
    "misspelt key": (
        change("node", to=[]),
        'the plan has the unknown key "node"; fix: did you mean nodes?',
    ),
    "unknown key": (change("zzz", to=1), 'unknown key "zzz"; fix: one of name, columns, nodes'),
    "no columns": (change("columns", to=[]), "the plan has no columns; fix: at least one"),
    "columns no list": (change("columns", to={}), "columns is {}; fix: a list, [...]"),
    "column no object": (change("columns", 0, to="d"), 'columns[0] is "d"; fix: an object'),
    "column's kind": (
        change("columns", 0, "kind", to="dens"),
        "column d has kind dens; fix: dense or",
    ),
    "column's key": (
        change("columns", 1, "widht", to=2),
        'columns[1] has the unknown key "widht"; fix: did you mean width?',
    ),
    "width no number": (
        change("columns", 1, "width", to="3"),
        'columns[1]: width is "3"; fix: a whole number',
    ),
    "width true": (
        change("columns", 1, "width", to=True),
        "columns[1]: width is true; fix: a whole",
    ),
    "width 0": (change("columns", 1, "width", to=0), "column s has width 0; fix"),
    "ragged 1": (
        change("columns", 1, "ragged", to=1),
        "columns[1]: ragged is 1; fix: true or false",
    ),
    "null rate": (
        change("columns", 0, "null_rate", to=1.5),
        "columns[0]: null_rate is 1.5; fix: a share",
    ),
    "ids": (change("columns", 1, "ids", to=-1), "columns[1]: ids is -1; fix"),
    "unknown op": (
        change("nodes", 3, "op", to="sigridhash"),
        "nodes[3] has the unknown operator sigridhash; fix: did you mean sigrid_hash?",
    ),
    "node's input": (
        change("nodes", 3, "input", drop=True),
        "nodes[3] lacks the key input; fix: add it",
    ),
    "input nowhere": (
        change("nodes", 3, "input", to="sx"),
        "node sh reads sx, which does not exist; fix",
    ),
    "no such parameter": (
        change("nodes", 3, "parameters", "modulo", to=1),
        'nodes[3]: sigrid_hash has no parameter "modulo"; fix: did you mean modulus?',
    ),
    "parameter missing": (
        change("nodes", 3, "parameters", drop=True),
        "node sh: sigrid_hash got the parameters none; fix: salt, modulus",
    ),
    "parameters a list": (
        change("nodes", 3, "parameters", to=[]),
        "nodes[3]: parameters is []; fix: an object",
    ),
    "parameter's type": (
        change("nodes", 3, "parameters", "salt", to=0.5),
        "node sh: the parameter salt of sigrid_hash is 0.5; fix: a whole number",
    ),
    "modulus": (
        change("nodes", 3, "parameters", "modulus", to=0),
        "sigrid_hash cannot work with salt 0, modulus 0; fix: a modulus of",
    ),
    "map": (
        change(
            "nodes",
            3,
            to={
                "name": "sh",
                "op": "map_id",
                "input": "sf",
                "parameters": {"size": 2**31, "seed": 0},
            },
        ),
        "node sh: map_id cannot work with size 2147483648, seed 0; fix: a map of",
    ),
    "first_x beyond int32": (
        operator("s", "first_x", x=2**31),
        "first_x cannot work with x 2147483648; fix: x of at least 1 and below 2**31",
    ),
    "ngram beyond int32": (
        operator("s", "ngram", n=2**31),
        "ngram cannot work with n 2147483648; fix: n of at least 1 and below 2**31",
    ),
    "logit up to 1": (operator("d", "logit", eps=2.9e-8), "fix: eps of at least 3e-08 and below"),
    "boxcox that cancels": (
        operator("d", "boxcox", lam=-9e-9),
        "fix: lam 0, which is the logarithm, or from 1e-08",
    ),
    "boxcox beyond float32": (operator("d", "boxcox", lam=1e39), "fix: lam 0, which is the"),
    "clamp beyond float32": (
        operator("d", "clamp", lo=0, hi=1e39),
        "fix: lo not above hi, and both within float32",
    ),
    "one_hot beyond float32": (
        operator("d", "one_hot", lo=-1e39, hi=0, k=4),
        "fix: lo, hi and hi - lo within float32, (hi",
    ),
    "one_hot's step is 0": (
        operator("d", "one_hot", lo=0, hi=1e-46, k=4),
        "fix: lo, hi and hi - lo within float32, (hi - lo) / k at least 1.2e-38",
    ),
    "one_hot's step is infinite": (
        operator("d", "one_hot", lo=-3e38, hi=3e38, k=1),
        "fix: lo, hi and hi - lo within float32, (hi",
    ),
    "infinite": (
        change("nodes", 2, "parameters", "value", to=float("inf")),
        "nodes[2]: value of fill_null is not finite; fix",
    ),
    "NaN in borders": (
        change("nodes", 1, "parameters", "borders", to=[float("nan")]),
        "borders of bucketize is not finite",
    ),
    "borders' order": (
        change("nodes", 1, "parameters", "borders", to=[2, 1]),
        "bucketize cannot work with borders (2, 1); fix: borders in ascending order",
    ),
    "cycle": (
        change("nodes", 2, "input", to="sh"),
        "plan mine has a cycle: sf -> sh -> sf; fix: break it",
    ),
    "type mismatch": (
        change("nodes", 3, "input", to="df"),
        "node sh: sigrid_hash takes int64 and reads float32[1]; fix: cast before it",
    ),
    "null unfilled": (
        change("nodes", 3, "input", to="s"),
        "with nulls; fix: put fill_null before it",
    ),
    "twice": (change("nodes", 3, "name", to="sf"), "the name sf is given twice; fix: rename one"),
    "dense nowhere": (change("dense", to=["x"]), "the output x is no node; fix"),
    "dense a number": (change("dense", 0, to=1), "dense[0] is 1; fix: the name of a node"),
    "dense of ids": (change("dense", to=["sh"]), "the dense output sh is int64[up to 3]; fix"),
    "no dense": (change("dense", to=[]), "no dense or no sparse output; fix"),
    "rows": (change("sparse", 0, "rows", to=0), "the table of sh has 0 rows; fix: at least 1"),
    "rows missing": (change("sparse", 0, "rows", drop=True), "sparse[0] lacks the key rows"),
    "over arch": (change("over_arch", to=[8, 4]), "over_arch does not end with 1; fix"),
    "over arch's layer": (
        change("over_arch", to=[8, 0, 1]),
        "over_arch[1] is 0; fix: a whole number",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_sentence_with_a_fix(fault, tmp_path):
    edit, words = FAULTS[fault]
    data = good()
    parse(json.dumps(data))
    edit(data)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(data))
    with pytest.raises(PlanError, match=re.escape(words)) as caught:
        load(path)
    sentence = str(caught.value)
    assert sentence.startswith(f"{path}: ")
    assert sentence.count("fix:") == 1
    assert "\n" not in sentence


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON (line 1, column 2: Expecting property name"),
        ("", "not JSON (line 1, column 1: Expecting value)"),
        ("[]", "the plan is []; fix: an object"),
        (
            '{"name": "a", "name": "b"}',
            'the key "name" is given twice in one object; fix: keep one',
        ),
        ("[" * 200_000, "nested too deeply; fix"),
    ],
)
def test_what_is_no_plan_at_all_is_refused(text, words):
    with pytest.raises(PlanError, match=re.escape(words)):
        parse(text)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(PlanError, match=r"nowhere\.json: there is no such plan file; fix"):
        load(tmp_path / "nowhere.json")
    with pytest.raises(PlanError, match=r"cannot be read .*; fix: a readable UTF-8 file"):
        load(tmp_path)
    path = tmp_path / "latin.json"
    path.write_bytes('{"name": "é"}'.encode("latin-1"))
    with pytest.raises(PlanError, match=r"cannot be read .*; fix: a readable UTF-8 file"):
        load(path)


@pytest.mark.parametrize(
    ("column", "op", "parameters"),
    [
        ("s", "first_x", {"x": 2**31 - 1}),
        ("s", "ngram", {"n": 2**31 - 1}),
        ("d", "logit", {"eps": 3e-8}),
        ("d", "boxcox", {"lam": 0}),
        ("d", "boxcox", {"lam": -1e-8}),
        ("d", "clamp", {"lo": -3e38, "hi": 3e38}),
        ("s", "clamp", {"lo": -(2**63), "hi": 2**63 - 1}),
        ("d", "one_hot", {"lo": 0, "hi": 3e38, "k": 1}),
    ],
)
def test_parameters_at_their_limits_are_taken(column, op, parameters):
    data = good()
    operator(column, op, **parameters)(data)
    assert "more" in parse(json.dumps(data)).node
