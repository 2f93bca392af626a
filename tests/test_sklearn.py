"""The estimators for scikit-learn, with scikit-learn's own tools."""

import os
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import estimator_checks_generator

from longspan import UserError
from longspan.sklearn import LongspanClassifier, LongspanRegressor, LongspanTagger

SMALL: dict[str, Any] = {"dim": 8, "heads": 2, "depth": 1, "learning_rate": 0.05}
DOCUMENTS: dict[str, Any] = {**SMALL, "tokens": "words", "num_train_epochs": 6, "min_steps": 0, "max_minutes": 0}
# Without checkpoints, which take most of the time here.
DOCUMENTS |= {"eval_strategy": "no", "load_best_model_at_end": False}
CLASSES = {**DOCUMENTS, "wide": False}
ESTIMATORS = [LongspanClassifier(), LongspanRegressor(), LongspanTagger()]

#: Checks that scikit-learn leaves out for estimators of texts, but whose inputs do not matter. Those left out feed
#: numbers as documents, which are refused: check_fit_score_takes_y, check_positive_only_tag_during_fit,
#: check_readonly_memmap_input, and all that compare fits of arrays.
CHECKS = (
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_estimator_tags_renamed",
    "check_estimators_unfitted",
    "check_get_params_invariance",
    "check_mixin_order",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_requires_y_none",
    "check_set_params",
    "check_valid_tag_types",
)


@pytest.fixture(scope="module")
def documents(animals: Path) -> tuple[list[str], list[str]]:
    rows = pd.read_csv(animals)
    return rows["text"].tolist(), rows["label"].tolist()


@pytest.fixture(scope="module")
def fitted(documents: tuple[list[str], list[str]]) -> LongspanClassifier:
    return LongspanClassifier(**CLASSES).fit(*documents)


# It says that it leaves checks out.
@pytest.mark.filterwarnings("ignore:Can't test estimator:sklearn.exceptions.SkipTestWarning")
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda one: type(one).__name__)
def test_what_scikit_learn_checks(estimator: Any) -> None:
    checks = list(estimator_checks_generator(estimator))
    assert checks
    for own, check in checks:
        check(own)


# Some checks fit with numbers on the way to what they ask.
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda one: type(one).__name__)
def test_what_it_could_check(estimator: Any, check: str) -> None:
    getattr(estimator_checks, check)(type(estimator).__name__, clone(estimator))


@pytest.mark.slow
def test_cross_validation_and_grids_find_what_is_easy(documents: tuple[list[str], list[str]]) -> None:
    estimator = LongspanClassifier(**CLASSES)
    assert (cross_val_score(estimator, *documents, cv=2) > 0.95).all()
    search = GridSearchCV(estimator, {"dim": [8, 4]}, cv=2).fit(*documents)
    assert {row["dim"] for row in search.cv_results_["params"]} == {8, 4}
    assert search.best_estimator_.run_.model.config.dim == search.best_params_["dim"]


@pytest.mark.slow
def test_a_pipeline_and_columns_of_frames(documents: tuple[list[str], list[str]]) -> None:
    texts, labels = documents
    pipeline = make_pipeline(FunctionTransformer(lambda texts: texts.str.lower()), LongspanClassifier(**CLASSES))
    pipeline.fit(pd.Series(texts), labels)
    assert pipeline.score(pd.Series(texts).str.upper(), labels) > 0.95
    estimator = pipeline[-1]
    wanted = estimator.predict(texts[:5]).tolist()
    for inputs in (pd.DataFrame({"any": texts[:5]}), np.array(texts[:5], dtype=object)[:, None], tuple(texts[:5])):
        assert estimator.predict(inputs).tolist() == wanted


@pytest.mark.slow
def test_classes_keep_their_type_and_order(documents: tuple[list[str], list[str]]) -> None:
    texts, labels = documents
    numbers = np.array([10 if label == "cat" else 9 for label in labels])
    estimator = LongspanClassifier(**CLASSES).fit(texts, numbers)
    assert estimator.classes_.tolist() == [9, 10]
    shares = estimator.predict_proba(texts)
    assert shares.shape == (240, 2)
    np.testing.assert_allclose(shares.sum(1), 1, rtol=1e-12)
    assert (estimator.predict(texts) == estimator.classes_[shares.argmax(1)]).all()
    assert estimator.predict(texts).dtype == numbers.dtype


@pytest.mark.slow
def test_a_pickle_is_the_same_model_without_the_folder(
    fitted: LongspanClassifier, documents: tuple[list[str], list[str]]
) -> None:
    copy = pickle.loads(pickle.dumps(fitted))
    assert copy.run_.folder != fitted.run_.folder
    assert (copy.predict_proba(documents[0]) == fitted.predict_proba(documents[0])).all()
    assert copy.get_params() == fitted.get_params()
    assert not hasattr(pickle.loads(pickle.dumps(LongspanClassifier())), "run_")


def _temporary_folders(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Callable[[], list[str]]:
    """The names of run folders in a folder that becomes the one for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return lambda: sorted(path.name for path in folder.glob("longspan-*"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [LongspanClassifier, LongspanRegressor, LongspanTagger])
def test_a_run_folder_lives_as_long_as_its_run(kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = _temporary_folders(monkeypatch, tmp_path)
    inputs = [[f"the{number}", "cat" if number % 2 else "dog"] for number in range(40)]
    targets: dict[Any, list[Any]] = {
        LongspanTagger: [["O", f"B-{words[1].upper()}"] for words in inputs],
        LongspanRegressor: [float(words[1] == "cat") for words in inputs],
        LongspanClassifier: [words[1] for words in inputs],
    }
    documents: list[Any] = inputs if kind is LongspanTagger else [" ".join(words) for words in inputs]
    settings = {
        **SMALL,
        "num_train_epochs": 1,
        **({} if kind is LongspanTagger else {"min_steps": 0, "max_minutes": 0}),
    }
    # Without the estimator, and before the model is read.
    run = kind(**settings).fit(documents, targets[kind]).run_
    assert len(run.predict(documents[:2])) == 2
    run.evaluate(split="validation")
    copied = pickle.loads(pickle.dumps(kind(**settings).fit(documents, targets[kind]))).run_
    assert len(copied.predict(documents[:2])) == 2
    assert len(folders()) == 2
    del run, copied
    assert folders() == []


@pytest.mark.slow
def test_only_the_last_fit_has_a_folder(
    documents: tuple[list[str], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = _temporary_folders(monkeypatch, tmp_path)
    estimator = LongspanClassifier(**CLASSES).fit(*documents)
    first = folders()
    estimator.fit(*documents)
    assert len(folders()) == 1
    assert folders() != first
    with pytest.raises(UserError):
        LongspanClassifier(dimm=1).fit(*documents)
    assert len(folders()) == 1
    # A forked process has the same objects, but not the files.
    if (child := os.fork()) == 0:
        del estimator
        os._exit(0)
    os.waitpid(child, 0)
    assert Path(estimator.run_.folder, "model.safetensors").is_file()


@pytest.mark.slow
def test_seeds_repeat_a_fit(documents: tuple[list[str], list[str]], fitted: LongspanClassifier) -> None:
    first, second = (LongspanClassifier(random_state=3, **CLASSES).fit(*documents) for _ in range(2))
    assert (first.predict_proba(documents[0]) == second.predict_proba(documents[0])).all()
    assert not (first.predict_proba(documents[0]) == fitted.predict_proba(documents[0])).all()


@pytest.mark.slow
def test_numbers(documents: tuple[list[str], list[str]]) -> None:
    texts, labels = documents
    stars = np.array([4.5 if label == "cat" else 1.5 for label in labels])
    estimator = LongspanRegressor(**DOCUMENTS).fit(texts, stars)
    assert estimator.predict(texts).shape == (240,)
    assert estimator.score(texts, stars) > 0.5


@pytest.mark.slow
def test_words() -> None:
    sentences = [["the", "cat" if number % 2 else "dog", f"word{number % 7}"] for number in range(120)]
    tags = [["O", "B-CAT" if words[1] == "cat" else "B-DOG", "O"] for words in sentences]
    estimator = LongspanTagger(**SMALL, num_train_epochs=8).fit(sentences, tags)
    assert estimator.predict(sentences[:2]) == tags[:2]
    assert estimator.score(sentences, tags) > 0.95


@pytest.mark.slow
def test_mistakes_are_one_sentence(fitted: LongspanClassifier, documents: tuple[list[str], list[str]]) -> None:
    texts, labels = documents
    with pytest.raises(UserError, match="row 2 of the list: expected an input to predict for, got no text"):
        fitted.predict(["a text", ""])
    with pytest.raises(UserError, match="expected one column of documents, got 2"):
        fitted.predict(pd.DataFrame({"a": ["x"], "b": ["y"]}))
    with pytest.raises(UserError, match=r"unknown key 'dimm'; did you mean 'model.dim'"):
        LongspanClassifier(dimm=3).fit(texts, labels)
    with pytest.raises(UserError, match="expected classes with different names, got '1', '1 '"):
        LongspanClassifier(**CLASSES).fit(["a", "b"], ["1", "1 "])
    with pytest.raises(UserError, match="expected at least two classes in the training data, got only 'cat'"):
        LongspanClassifier(**CLASSES).fit(texts, ["cat"] * 240)
    with pytest.raises(UserError, match="expected a list of documents, got text of 6 characters; put it into a list"):
        fitted.predict("a text")
    with pytest.raises(UserError, match="expected a list of documents, got text of 6 characters"):
        LongspanClassifier(**CLASSES).fit("a text", ["cat"] * 6)
    for missing in (None, float("nan"), np.float64("nan"), pd.NA):
        with pytest.raises(UserError, match="expected one class for each document, got none in row 2 of y; corr"):
            LongspanClassifier(**CLASSES).fit(["a", "b", "c"], ["cat", missing, "dog"])
    with pytest.raises(UserError, match="expected one class for each document, got a list of 2 in row 1 of y"):
        LongspanClassifier(**CLASSES).fit(["a", "b"], [["cat", "dog"], ["cat"]])
    with pytest.raises(UserError, match=r"expected classes of one type, got str in row 1 of y and int in row 3; conv"):
        LongspanClassifier(**CLASSES).fit(["a", "b", "c"], ["cat", "dog", 3])
    with pytest.raises(UserError, match="got int in row 1 of y and bool in row 2"):
        LongspanClassifier(**CLASSES).fit(["a", "b", "c"], np.array([1, True, 0], dtype=object))
    with pytest.raises(NotFittedError):
        LongspanTagger().score([["a"]], [["O"]])
