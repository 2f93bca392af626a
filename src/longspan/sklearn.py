"""Estimators for scikit-learn: `LongspanClassifier`, `LongspanRegressor` and `LongspanTagger`.

They train recipes on lists of documents, so that they work in a `Pipeline`, `cross_val_score` and `GridSearchCV`. Keys
of recipes are parameters: `LongspanClassifier(dim=64)`, `{"dim": [32, 64]}` in a grid. scikit-learn must be installed.
"""

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.exceptions import NotFittedError
except ImportError as error:
    raise ImportError("longspan.sklearn needs scikit-learn; install it with: pip install scikit-learn") from error

from longspan.data.columns.values import composed, described, label_text
from longspan.data.sources.in_memory import plain
from longspan.errors import UserError
from longspan.results.tables import Predictions
from longspan.verbs.train import train
from longspan.verbs.trained import TrainedRun, load


class _Estimator(BaseEstimator):
    """Shared part of the estimators: a recipe that `fit` trains in a temporary run folder, which a pickle contains."""

    #: The recipe that is trained unless another is named.
    default: ClassVar[str]

    run_: TrainedRun

    def __init__(
        self, recipe: str | None = None, *, random_state: int | None = None, progress: bool = False, **settings: Any
    ) -> None:
        self.recipe = recipe
        self.random_state = random_state
        self.progress = progress
        self.set_params(**settings)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters, keys of the recipe among them, by name."""
        return {name: value for name, value in vars(self).items() if name.strip("_") == name}

    def set_params(self, **params: Any) -> Self:
        """Set parameters, or keys of the recipe; whether there are such keys is found out by `fit`."""
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.one_d_array, tags.input_tags.string = False, True, True
        tags.target_tags.required = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "run_")

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        if "run_" in state:
            # Its files, without the folders of checkpoints and evaluations.
            files = (path for path in Path(self.run_.folder).iterdir() if path.is_file())
            state["run_"] = {path.name: path.read_bytes() for path in files}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        files = state.get("run_")
        super().__setstate__({name: value for name, value in state.items() if name != "run_"})
        if files is not None:

            def write(folder: Path) -> TrainedRun:
                folder.mkdir()
                for name, content in files.items():
                    (folder / Path(name).name).write_bytes(content)
                return load(folder)

            self.run_ = _in_temporary_folder(write)

    def _fitted(self, inputs: Any, targets: Any) -> Self:
        settings = self.get_params()
        recipe, seed = settings.pop("recipe") or self.default, settings.pop("random_state")
        if seed is not None:
            settings |= {"seed": seed, "split_seed": seed}
        data = (_listed(inputs), _listed(targets))
        self.run_ = _in_temporary_folder(lambda folder: train(recipe, data=data, run=folder, **settings))
        return self

    def _check_targets(self, targets: Any) -> None:
        if targets is None:
            raise UserError(f"{type(self).__name__} requires y to be passed, but the target y is None; give targets.")

    def _check_fitted(self) -> None:
        if not hasattr(self, "run_"):
            raise NotFittedError(f"this {type(self).__name__} is not fitted; call fit first.")

    def _predicted(self, inputs: Any) -> Predictions:
        """Return predictions for all of the inputs.

        Raises:
            UserError: One of them has no prediction.
        """
        self._check_fitted()
        found = self.run_.predict(_listed(inputs))
        assert isinstance(found, Predictions)
        for one in found:
            if one.error is not None:
                raise UserError(f"{one.where}: expected an input to predict for, got {one.error}; remove or fill it.")
        return found


class LongspanClassifier(ClassifierMixin, _Estimator):
    """Classify documents.

    Args:
        recipe: The recipe to train, one with a class for each document; "classify" by default.
        random_state: Seed of training and of the split for validation; the recipe's by default.
        progress: Whether `fit` shows its progress.
        settings: Keys of the recipe by their names, such as `dim=64`; see `longspan.train`.

    Attributes:
        run_: The trained run, a `longspan.TrainedRun`.
        classes_: The classes, (classes,), sorted.
    """

    default = "classify"

    def fit(self, X: Any, y: Any) -> Self:
        """Train on documents `X`, a sequence of texts, and their classes `y`, numbers or texts.

        A part of them (`validation_fraction`) validates.

        Raises:
            UserError: The data or the settings cannot be used.
        """
        self._check_targets(y)
        found = np.asarray(_classes(y))
        self.classes_ = np.unique(found)
        names = _names(self.classes_)
        return self._fitted(X, [names[value] for value in found.tolist()])

    def predict(self, X: Any) -> np.ndarray:
        """Return the most likely class of each document, (n,). Raises UserError for one without text."""
        chosen = self._probabilities(X).argmax(1)
        return self.classes_[chosen]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probability of each class, (n, classes). Raises UserError for a document without text."""
        return self._probabilities(X)

    def _probabilities(self, inputs: Any) -> np.ndarray:
        found = [one.to_dict()["probabilities"] for one in self._predicted(inputs)]
        names = list(_names(self.classes_).values())
        rows = [[own[name] for name in names] for own in found]
        # Float32 sums to 1 only nearly.
        shares = np.asarray(rows, dtype=np.float64).reshape(len(rows), len(names))
        return shares / shares.sum(1, keepdims=True)


class LongspanRegressor(RegressorMixin, _Estimator):
    """Predict a number for each document.

    Args:
        recipe: The recipe to train, one with a number for each document; "regression" by default.
        random_state, progress, settings: As for `LongspanClassifier`.

    Attributes:
        run_: The trained run, a `longspan.TrainedRun`.
    """

    default = "regression"

    def fit(self, X: Any, y: Any) -> Self:
        """Train on documents `X`, a sequence of texts, and a number `y` for each. Raises UserError as `train` does."""
        self._check_targets(y)
        return self._fitted(X, np.asarray(_listed(y), dtype=np.float64).reshape(-1))

    def predict(self, X: Any) -> np.ndarray:
        """Return a number for each document, (n,). Raises UserError for a document without text."""
        return np.asarray([one.to_dict()["number"] for one in self._predicted(X)], dtype=np.float64)


class LongspanTagger(_Estimator):
    """Label the words of documents, such as names of persons and places.

    Args:
        recipe: The recipe to train, one with a label for each word; "ner" by default.
        random_state, progress, settings: As for `LongspanClassifier`.

    Attributes:
        run_: The trained run, a `longspan.TrainedRun`.
    """

    default = "ner"

    def fit(self, X: Any, y: Any) -> Self:
        """Train on documents `X`, a list of words each, and a label for each word. Raises UserError as `train` does."""
        self._check_targets(y)
        return self._fitted(X, y)

    def predict(self, X: Any) -> list[list[str]]:
        """Return a label for each word of each document. Raises UserError for a document without words."""
        return [one.to_dict()["labels"] for one in self._predicted(X)]

    def score(self, X: Any, y: Any) -> float:
        """Return the score that selects models: F1 of spans, or the share of words that are right."""
        self._check_fitted()
        scores = self.run_.evaluate((_listed(X), _listed(y))).scores
        return float(getattr(scores, scores.headline()))


def _in_temporary_folder(make: Callable[[Path], TrainedRun]) -> TrainedRun:
    """The run that `make` writes to a temporary folder, which is removed with the run, or if there is none."""
    parent = tempfile.mkdtemp(prefix="longspan-")
    try:
        run = make(Path(parent, "run"))
    except BaseException:
        shutil.rmtree(parent, ignore_errors=True)
        raise
    weakref.finalize(run, _remove, parent, os.getpid())
    return run


def _remove(folder: str, process: int) -> None:
    """Remove a folder of this process; a forked one has copies of objects, but not their files."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def _classes(targets: Any) -> list[Any]:
    """Return targets as Python objects of one type, of which none is missing.

    Raises:
        UserError: One is missing or a list, or they differ in type: numpy would make texts of them.
    """
    found = list(map(plain, _listed(targets)))
    for number, value in enumerate(found, 1):
        if value is None or isinstance(value, list | dict):
            told = "none" if value is None else described(value)
            raise UserError(f"expected one class for each document, got {told} in row {number} of y; correct the row.")
        kinds = [float if type(one) is int else type(one) for one in (found[0], value)]
        if kinds[0] is not kinds[1]:
            raise UserError(
                f"expected classes of one type, got {type(found[0]).__name__} in row 1 of y and {type(value).__name__} "
                f"in row {number}; convert them to one."
            )
    return found


def _names(classes: np.ndarray) -> dict[Any, str]:
    """Return the name of each class in a run, in order."""
    found = {value: composed(label_text(value) or "") for value in classes.tolist()}
    if len(set(found.values())) < len(found) or "" in found.values():
        raise UserError(
            f"expected classes with different names, got {', '.join(map(repr, found))}, some of which are written "
            "alike, or empty; rename them."
        )
    return found


def _listed(values: Any) -> Sequence[Any]:
    """Return inputs or targets as a list, of an array or a frame the only column.

    Raises:
        UserError: It is one text, or a table with more columns.
    """
    if isinstance(values, str | bytes):
        raise UserError(f"expected a list of documents, got {described(values)}; put it into a list.")
    if hasattr(values, "columns"):
        values = values.to_numpy()
    if getattr(values, "ndim", 1) == 2:
        if values.shape[1] != 1:
            raise UserError(f"expected one column of documents, got {values.shape[1]}; select one of them.")
        values = values[:, 0]
    return values if isinstance(values, list) else list(values)
