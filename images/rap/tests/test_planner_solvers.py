import numpy as np
import pytest
from rap_training.planner.solvers import LicenceError, Model, SolverError, check_licence, highs


def knapsack(start):
    """Maximise 5a + 4b + 3c with 2a + 3b + c <= 5: a and b, 9."""
    model = Model()
    values = zip((5.0, 4.0, 3.0), start, strict=True)
    variables = [model.variable(0, 1, start=value, cost=cost) for cost, value in values]
    model.row(-np.inf, 5.0, list(zip(variables, (2.0, 3.0, 1.0), strict=True)))
    return model


@pytest.mark.parametrize("start", [(0, 0, 0), (1, 0, 1), (1, 1, 0)])
def test_highs_maximises_from_any_start(start):
    found = highs(knapsack(start), time_limit_s=10, gap=0.0)
    assert (found.objective, found.bound, found.finished) == (9.0, 9.0, True)
    assert found.values == pytest.approx((1, 1, 0))


def test_a_continuous_variable_need_not_be_whole():
    model = Model()
    x = model.variable(0, 10, start=0, cost=1.0, whole=False)
    model.row(-np.inf, 5.0, [(x, 2.0)])
    assert highs(model, time_limit_s=10, gap=0.0).objective == pytest.approx(2.5)


def test_a_model_without_a_solution_is_an_error():
    model = Model()
    x = model.variable(0, 1, start=0)
    model.row(2.0, 3.0, [(x, 1.0)])
    with pytest.raises(SolverError, match="HiGHS ended with Infeasible"):
        highs(model, time_limit_s=10, gap=0.0)


@pytest.mark.parametrize("line", ["LICENSEID=123", "TOKENSERVER=host", " WLSACCESSID = abc"])
def test_what_looks_like_a_licence_is_taken(tmp_path, line):
    path = tmp_path / "gurobi.lic"
    path.write_text(f"# Gurobi license file\n{line}\n")
    check_licence(path)


def test_a_folder_or_a_comment_is_no_licence(tmp_path):
    with pytest.raises(LicenceError, match="cannot be read: Is a directory"):
        check_licence(tmp_path)
    (tmp_path / "x").write_text("# LICENSEID=1\n")
    with pytest.raises(LicenceError, match="is no Gurobi licence"):
        check_licence(tmp_path / "x")
