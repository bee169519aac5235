"""Fitted models of scikit-learn as networks: their scores, their columns, their classes, and what `estimate` says."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from rarely import Gaussian, Misclassification, Problem, Targeted, estimate
from rarely.core.errors import InputError, NetworkError
from rarely.core.fitted import Fitted
from rarely.core.rng import Rng
from rarely.inputs import Choice, Normal, OneHot, Tabular

pandas = pytest.importorskip("pandas")
compose, ensemble, linear_model, model_selection, naive_bayes, pipeline, preprocessing, svm = (
    pytest.importorskip(f"sklearn.{name}")
    for name in (
        "compose", "ensemble", "linear_model", "model_selection", "naive_bayes", "pipeline", "preprocessing", "svm",
    )
)  # fmt: skip
ColumnTransformer, GaussianNB, SVC, make_pipeline = (
    compose.ColumnTransformer, naive_bayes.GaussianNB, svm.SVC, pipeline.make_pipeline,
)  # fmt: skip
LinearRegression, LogisticRegression = linear_model.LinearRegression, linear_model.LogisticRegression

DRAWS = 100_000


def _frame(n: int = 1_500) -> tuple[Any, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    income, city = rng.normal(40, 12, n), rng.choice(["Bonn", "Köln", "Ulm"], n, p=[0.5, 0.3, 0.2])
    frame = pandas.DataFrame({"age": rng.normal(45, 12, n), "income": income, "city": city})
    lent = 0.25 * (income - 30) - 1.5 * (city == "Ulm") + rng.logistic(size=n) > 0
    return frame, np.where(lent, "yes", "no")


FRAME, ANSWERS = _frame()
CITY = OneHot([0.5, 0.3, 0.2], names=["Bonn", "Köln", "Ulm"])
# Columns in another order than the model's, and more of them.
TABLE = Tabular({"city": CITY, "income": Normal(56, 8), "height": Normal(170, 9), "age": Normal(45, 12)})


def _pipeline(last: Any) -> Any:
    numbers = ("numbers", preprocessing.StandardScaler(), ["age", "income"])
    return make_pipeline(ColumnTransformer([numbers, ("texts", preprocessing.OneHotEncoder(), ["city"])]), last).fit(
        FRAME, ANSWERS
    )


@pytest.mark.parametrize(
    ("last", "method"),
    [
        (LogisticRegression(), "decision_function"),
        (ensemble.GradientBoostingClassifier(n_estimators=20, random_state=0), "decision_function"),
        (SVC(), "decision_function"),
        (ensemble.RandomForestClassifier(20, random_state=0), "predict_proba"),
        (GaussianNB(), "predict_proba"),
        (model_selection.FixedThresholdClassifier(LogisticRegression(), threshold=0.9), "predict"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else value,
)
def test_the_largest_score_is_the_class_that_the_model_predicts(last: Any, method: str) -> None:
    model = _pipeline(last)
    problem = Problem(model, Targeted("yes", "no"), TABLE)
    assert isinstance(problem.network, Fitted)
    assert problem.network.method == method
    x = TABLE.sample(2_000, Rng(1))
    predicted = model.predict(pandas.DataFrame(TABLE.records(x))[list(FRAME)])
    np.testing.assert_array_equal((problem.score(x) >= 0).numpy(), predicted == "no")


@pytest.mark.parametrize(
    "last", [LogisticRegression(), ensemble.GradientBoostingClassifier(n_estimators=20, random_state=0), GaussianNB()]
)
def test_estimates_agree_with_plain_draws_of_the_pipeline(last: Any) -> None:
    model = _pipeline(last)
    x = TABLE.sample(DRAWS, Rng(2))
    hits = int((model.predict(pandas.DataFrame(TABLE.records(x))[list(FRAME)]) == "no").sum())
    assert hits > 20
    found = estimate(Problem(model, Misclassification("yes"), TABLE), seed=3)
    assert abs(found.log_prob - math.log(hits / DRAWS)) < 5 * math.hypot(found.log_prob_std, 1 / math.sqrt(hits))


def test_columns_in_the_order_of_the_inputs_would_be_wrong() -> None:
    """What the order is good for: the same numbers under each other's names say something else."""
    model = LinearRegression().fit(FRAME[["age", "income"]], FRAME["income"])
    inputs = Tabular({"income": Normal(56, 8), "age": Normal(45, 12)})
    x = inputs.sample(100, Rng(4))
    y = Problem(model, lambda x, y: y.flatten(), inputs).adapted.call(x).flatten()
    torch.testing.assert_close(y, x[:, 0], rtol=1e-4, atol=1e-3)
    assert not torch.allclose(y, x[:, 1], atol=1.0)


def test_rare_answers_of_a_saturated_classifier_are_climbed_to() -> None:
    """A naive Bayes rule whose probabilities are 0 and 1 in floating point on nearly all inputs, with an exact answer.

    Two classes of normals at -3 and 3 of spread 0.5: the border is 0, ten standard deviations of the inputs away.
    """
    rng = np.random.default_rng(5)
    data = np.concatenate([rng.normal(-3, 0.5, (4_000, 2)), rng.normal(3, 0.5, (4_000, 2))])
    model = GaussianNB(priors=[0.5, 0.5]).fit(data, np.repeat(["left", "right"], 4_000))
    model.theta_, model.var_ = np.array([[-3.0, -3.0], [3.0, 3.0]]), np.full((2, 2), 0.25)
    inputs = Gaussian([3.0, 3.0], std=[0.5, 0.5])
    assert (model.predict_proba(inputs.sample(1_000, Rng(6)).numpy())[:, 1] == 1).mean() > 0.9
    found = estimate(Problem(model, Misclassification("right"), inputs), seed=7)
    exact = float(torch.special.log_ndtr(torch.tensor(-6 * math.sqrt(2), dtype=torch.float64)))
    assert abs(found.log_prob - exact) < 5 * found.log_prob_std


def test_a_forest_is_told_to_move_in_steps_and_still_counted() -> None:
    model = ensemble.RandomForestClassifier(20, random_state=0).fit(FRAME[["age", "income"]].to_numpy(), ANSWERS)
    inputs = Gaussian([45.0, 50.0], std=[12.0, 6.0])
    found = estimate(Problem(model, Targeted("yes", "no"), inputs), seed=8)
    x = inputs.sample(DRAWS, Rng(9)).numpy()
    hits = int((model.predict(x) == "no").sum())
    assert abs(found.log_prob - math.log(hits / DRAWS)) < 5 * math.hypot(found.log_prob_std, 1 / math.sqrt(hits))


def test_dummies_and_codes_and_texts_are_one_model_each() -> None:
    dummies = pandas.get_dummies(FRAME[["city"]]).assign(income=FRAME["income"])
    by_dummies = LogisticRegression().fit(dummies, ANSWERS)
    by_texts = make_pipeline(
        ColumnTransformer([("texts", preprocessing.OneHotEncoder(), ["city"])], remainder="passthrough"),
        LogisticRegression(),
    ).fit(FRAME[["city", "income"]], ANSWERS)
    hot = Tabular({"city": CITY, "income": Normal(56, 8)})
    coded = Tabular({"city": Choice(["Bonn", "Köln", "Ulm"], [0.5, 0.3, 0.2]), "income": Normal(56, 8)})
    z = Rng(10).normal((500, 2))
    scores = [
        Problem(model, Targeted("yes", "no"), table).score(table.from_normal(z))
        for model, table in ((by_dummies, hot), (by_texts, hot), (by_texts, coded))
    ]
    torch.testing.assert_close(scores[1], scores[2])
    torch.testing.assert_close(scores[0], scores[1], rtol=0.02, atol=0.05)  # columns are the same, the solver's end not
    assert coded.records(coded.from_normal(z[:1]))[0]["city"] in {"Bonn", "Köln", "Ulm"}


def test_numbered_categories_stay_numbers() -> None:
    data = pandas.DataFrame({"rooms": [1, 2, 3, 4] * 50, "size": np.linspace(20, 120, 200)})
    model = LinearRegression().fit(data, 10.0 * data["rooms"] + data["size"])
    inputs = Tabular.fit(data, categorical=["rooms"], correlated=False)
    x = inputs.sample(50, Rng(11))
    rooms = 1.0 + x[:, :4].argmax(1)
    y = Problem(model, lambda x, y: y.flatten(), inputs).adapted.call(x).flatten()
    torch.testing.assert_close(y, 10 * rooms + x[:, 4], rtol=1e-4, atol=1e-3)


def test_models_without_classes_give_one_number() -> None:
    data = np.random.default_rng(12).normal(size=(300, 3))
    inputs = Gaussian([0.0, 0.0, 0.0], std=[1.0, 1.0, 1.0])
    for model, method in ((ensemble.IsolationForest(n_estimators=20, random_state=0).fit(data), "decision_function"),
                          (LinearRegression().fit(data, data[:, 0]), "predict")):  # fmt: skip
        problem = Problem(model, lambda x, y: y.flatten() - 10, inputs)
        assert (problem.network.method, problem.outputs) == (method, 1)


def test_problems_of_one_model_share_a_function_and_other_columns_do_not() -> None:
    model = _pipeline(LogisticRegression())
    other = Tabular({"age": Normal(45, 12), "city": CITY, "income": Normal(56, 8)})
    first, again, apart = (Problem(model, Targeted("yes", "no"), table) for table in (TABLE, TABLE, other))
    assert first.network is again.network
    assert first.network is not apart.network


def test_functions_and_classes_stay_what_they_are() -> None:
    class Both:
        """A function that has a `predict`, too, as networks of other frameworks do."""

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x.sum(1)

        def predict(self, x: torch.Tensor) -> torch.Tensor:
            raise AssertionError

    network = Both()
    assert Problem(network, lambda x, y: y, Gaussian([0.0], std=[1.0])).network is network


def _fit(data: Any, answers: Any = ANSWERS) -> Any:
    return LogisticRegression().fit(data, answers)


NUMBERS = FRAME[["age", "income"]]
SMALL = Tabular({"age": Normal(45, 12), "wage": Normal(40, 8)})
PLAIN = Gaussian([45.0, 40.0], std=[1.0, 1.0])


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: Problem(_fit(NUMBERS), Targeted("yes", "no"), SMALL), "do not have: income; it does not know wage"),
        (lambda: Problem(_fit(NUMBERS), Targeted("yes", "no"), Gaussian([0.0], std=[1.0])), "fitted on 2 columns"),
        (
            lambda: Problem(_fit(NUMBERS), Misclassification("maybe"), PLAIN),
            "no class 'maybe'; the classes are no, yes",
        ),
        (lambda: Problem(lambda x: x, Misclassification("yes"), PLAIN), "does not name its classes"),
        (lambda: Targeted("yes", "yes"), "both yes"),
        (lambda: Problem(_fit(NUMBERS, np.tile([1, 2, 3], 500)), Misclassification(1), PLAIN), 'Write "1"'),
    ],
)
def test_errors_say_what_to_do(build: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        build()


def test_a_model_that_is_not_fitted_is_told_by_its_own_words() -> None:
    with pytest.raises(NetworkError, match="not fitted yet"):
        Problem(LogisticRegression(), Misclassification(), PLAIN)


def test_a_frame_for_inputs_without_names_takes_the_models_own() -> None:
    """Warnings are errors here: scikit-learn warns of arrays where it was fitted on a frame."""
    assert Problem(_fit(NUMBERS), Targeted("yes", "no"), PLAIN).score(torch.tensor([[45.0, 90.0]])) < 0
