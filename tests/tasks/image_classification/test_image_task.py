"""Image classification, through the verbs, transformers' Auto classes, and its pipeline."""

import base64
import io
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, Features
from datasets import Image as ImageFeature
from drawn_images import SHAPES, shape, write_shapes
from PIL import Image
from transformers import (
    AutoModelForImageClassification,
    ImageClassificationPipeline,
    ViTImageProcessor,
    pipeline,
)
from transformers.models.auto.image_processing_auto import AutoImageProcessor

import longspan
from longspan import TrainedRun, UserError, compare, predict, train
from longspan.data.images import processor as image_processor
from longspan.data.images.processor import ImageProcessor
from longspan.recipes import TRAINING_DEFAULTS
from longspan.recipes import load as load_recipe
from longspan.report.explanation import signed
from longspan.testing import check_task
from longspan.verbs import jobs

SMALL = ["model.dim=16", "model.heads=2", "model.depth=1", "data.patch_size=2", "model.stem=0"]
AUGMENTED = ["data.flip=true", "data.shift=1", "data.crop=0.8", "data.mixup=0.2"]
QUICK = ["training.max_minutes=0", "training.per_device_train_batch_size=8", "training.learning_rate=0.01"]


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shapes(tmp_path_factory.mktemp("shapes"))


@pytest.fixture(scope="module")
def run(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    folder = tmp_path_factory.mktemp("runs") / "run"
    stem = ["model.stem=4", "model.dropout=0.0", "training.num_train_epochs=3"]
    return train("images", [f"data.path={shapes}", *SMALL, *QUICK, *stem], run=folder, progress=False)


@pytest.mark.slow
def test_it_keeps_the_promises(shapes: Path) -> None:
    check_task("image_classification", shapes, [*SMALL, *AUGMENTED])


@pytest.mark.slow
def test_a_pipeline_says_what_predict_says(run: TrainedRun, shapes: Path) -> None:
    files = [str(shapes / name / f"{number}.{kind}") for name in SHAPES for number, kind in ((0, "png"), (2, "webp"))]
    found = list(predict(run.folder, files))
    model = AutoModelForImageClassification.from_pretrained(run.folder)
    processor = AutoImageProcessor.from_pretrained(run.folder)
    classify = pipeline("image-classification", model=model, image_processor=processor)
    for told, one in zip(classify(files), found, strict=True):
        assert {each["label"]: pytest.approx(each["score"], abs=1e-5) for each in told} == one.probabilities
    again = Path(run.folder, "saved")
    processor.save_pretrained(again)
    saved = [json.loads((folder / "preprocessor_config.json").read_text()) for folder in (again, Path(run.folder))]
    assert saved[0] == saved[1]


@pytest.mark.slow
def test_a_pipeline_reads_transparent_and_deep_images_as_predict_does(run: TrainedRun, tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    alpha = Image.fromarray(random.integers(0, 256, (9, 10, 4), np.uint8))
    deep = random.integers(0, 1 << 16, (9, 10)).astype(np.uint16)
    for name, image in (
        ("rgba.png", alpha),
        ("la.png", alpha.convert("LA")),
        ("palette.tiff", alpha.convert("PA")),
        ("deep.png", Image.fromarray(deep)),
        ("whole.tiff", Image.fromarray(deep.astype(np.int32))),
        ("rgb.png", alpha.convert("RGB")),
    ):
        image.save(tmp_path / name)
    files = sorted(map(str, tmp_path.iterdir()))
    model = AutoModelForImageClassification.from_pretrained(run.folder)
    classify = pipeline("image-classification", model=str(run.folder))
    encoded = [base64.b64encode(Path(path).read_bytes()).decode() for path in files]
    addresses = [f"data:image/png;base64,{content}" for content in encoded]
    expected = [one.probabilities for one in predict(run.folder, files)]
    assert len({tuple(one.values()) for one in expected if one}) > 2
    for given in (files, encoded, addresses, [Image.open(path) for path in files]):
        for told, one in zip(classify(given), expected, strict=True):
            assert {each["label"]: pytest.approx(each["score"], abs=1e-5) for each in told} == one
    # Other image processors get what transformers gives them.
    other = ViTImageProcessor(size={"height": 9, "width": 10})
    usual = ImageClassificationPipeline(model=model, image_processor=other)
    ours = pipeline("image-classification", model=model, image_processor=other)
    assert (usual.preprocess(files[0])["pixel_values"] == ours.preprocess(files[0])["pixel_values"]).all()


def test_a_folder_a_table_and_objects_in_memory_are_read_alike(run: TrainedRun, shapes: Path, tmp_path: Path) -> None:
    files = sorted(shapes.glob("*/*"))[:5]
    rows = "\n".join(str(path) for path in files)
    (tmp_path / "table.csv").write_text(f"image\n{rows}\n", encoding="utf-8")
    expected = [one.probabilities for one in predict(run.folder, tmp_path / "table.csv")]
    opened = [Image.open(path) for path in files]
    arrays = [np.asarray(one) for one in opened]
    hub = Dataset.from_dict({"image": [str(path) for path in files]}, features=Features({"image": ImageFeature()}))
    for given in (opened, arrays, {"image": arrays}, [{"image": one.tolist()} for one in arrays], hub):
        assert [one.probabilities for one in run.predict(given)] == expected
    # As many images as in the table: batches of other sizes round differently.
    (tmp_path / "folder").mkdir()
    for path in files:
        shutil.copy(path, tmp_path / "folder")
    assert [one.probabilities for one in predict(run.folder, tmp_path / "folder")] == expected
    bad = list(run.predict([arrays[0], np.zeros(3), arrays[1]]))
    assert bad[1].probabilities is None
    for one, other in ((bad[0], expected[0]), (bad[2], expected[1])):
        # Probabilities in float32, after sums over 700 features.
        assert one.probabilities == pytest.approx(other, abs=1e-5)
    assert "got an array of shape (3,)" in str(bad[1].error)


@pytest.mark.slow
def test_a_folder_is_relative_to_the_working_folder(
    run: TrainedRun, shapes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [one.probabilities for one in predict(run.folder, shapes / "box")]
    monkeypatch.chdir(shapes.parent)
    assert [one.probabilities for one in predict(run.folder, Path(shapes.name, "box"))] == expected
    data = load_recipe("images", [f"data.path={shapes.name}", *SMALL]).data
    found = run.recipe.task.load(data).splits["train"]["image"]
    assert all(Path(one["path"]).is_relative_to(shapes) for one in found)


@pytest.mark.slow
def test_learning_from_arrays_and_from_a_data_set_with_images(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    labels = [SHAPES[number % 3] for number in range(24)]
    arrays = [shape(name, 8, 9, random) for name in labels]
    kinds = Features({"image": ImageFeature(), "label": ClassLabel(names=list(SHAPES))})
    data_set = Dataset.from_dict({"image": [Image.fromarray(one) for one in arrays], "label": labels}, features=kinds)
    given = [*SMALL, *QUICK, "training.num_train_epochs=1"]
    scores = [
        train("images", given, run=tmp_path / name, data=data, progress=False).scores
        for name, data in (("arrays", (arrays, labels)), ("set", data_set))
    ]
    assert scores[0] == scores[1]


@pytest.mark.slow
def test_bad_images_are_named_or_skipped_and_counted(tmp_path: Path) -> None:
    folder = write_shapes(tmp_path / "shapes")
    (folder / "ring" / "4.png").write_bytes(b"no image")
    frames = [Image.new("L", (8, 8), shade) for shade in (0, 255)]
    frames[0].save(folder / "box" / "moving.gif", save_all=True, append_images=frames[1:])
    given = [f"data.path={folder}", *SMALL, *QUICK, "training.num_train_epochs=1"]
    with pytest.raises(UserError, match=r"^(box/moving.gif|ring/4.png): expected .*skip_bad_rows=true to drop"):
        train("images", given, run=tmp_path / "stops", progress=False)
    found = train("images", [*given, "data.skip_bad_rows=true"], run=tmp_path / "skips", progress=False)
    assert found.data["skipped"] == {"unreadable": 2}
    told = {one.where: one.error for one in predict(tmp_path / "skips", folder / "ring")}
    assert [name for name, error in told.items() if error] == ["4.png"]


def test_augmentation_depends_on_seed_epoch_and_image_alone(shapes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load_recipe("images", [f"data.path={shapes}", *SMALL, *AUGMENTED])
    prepared = recipe.task.prepare(recipe)
    assert isinstance(prepared.processor, ImageProcessor)
    rows = prepared.splits["train"]
    made = [image_processor.AugmentedImages(rows, prepared.processor, recipe.data, seed) for seed in (5, 5, 6)]
    monkeypatch.setattr(image_processor, "KEPT", 0)
    made.append(image_processor.AugmentedImages(rows, prepared.processor, recipe.data, 5))
    one = made[0][2, 7]
    for others, same in ((made[1][2, 7], True), (made[3][2, 7], True), (made[0][3, 7], False), (made[2][2, 7], False)):
        assert (one["pixel_values"] == others["pixel_values"]).all() == same
    assert len(one["pixel_values"]) == rows[7]["length"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pixels", "hog", "cnn"])
def test_baselines_tell_shapes_apart(name: str, tmp_path: Path) -> None:
    folder = write_shapes(tmp_path / "shapes", each=40)
    recipe = load_recipe("images", [f"data.path={folder}", "data.max_side=16", "training.num_train_epochs=12", *QUICK])
    fitted = recipe.task.baselines()[name]().fit(recipe)
    scores = fitted.scores["validation"]
    # Pixels alone say little of shapes at random places.
    assert scores.accuracy >= (0.2 if name == "pixels" else 0.6)
    assert fitted.parameters > 0


def test_a_comparison_trains_the_network_as_long_as_the_recipe(
    shapes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "run_module", lambda *arguments: "not fitted here")
    given = [f"data.path={shapes}", "training.num_train_epochs=5", "training.max_minutes=7"]
    with pytest.raises(UserError, match="not fitted here"):
        compare("images", overrides=given, baselines=["cnn", "pixels"], run=tmp_path)
    fitted = {name: load_recipe(str(tmp_path / f"baseline-{name}" / "recipe.toml")) for name in ("cnn", "pixels")}
    asked = {name: (one.training["num_train_epochs"], one.options.max_minutes) for name, one in fitted.items()}
    assert asked == {"cnn": (5, 7), "pixels": (TRAINING_DEFAULTS["num_train_epochs"], 0)}


def test_grey_levels_as_tokens_along_a_curve(shapes: Path, tmp_path: Path) -> None:
    given = [f"data.path={shapes}", *SMALL[:3], *QUICK, "training.num_train_epochs=1", "data.scan=hilbert"]
    found = train("image-pixels", [*given, "model.levels=16"], run=tmp_path / "tokens", progress=False)
    assert found.data["train"]["longest"] >= 64
    assert longspan.evaluate(found.folder, split="validation").scores == found.scores["validation"]


@pytest.mark.slow
def test_an_explanation_says_where(run: TrainedRun) -> None:
    pixels = shape("box", 12, 10, np.random.default_rng(3))
    found = run.explain(Image.fromarray(pixels), of="box", check=True)
    assert found.places == "pixels"
    assert found.spans[:2] == [[0, 0, 2, 2], [0, 2, 2, 2]]
    assert len(found.scores) == len(found.spans) == 6 * 5
    assert np.abs(found.scores).max() > 0
    assert found.pieces()[1].text == "row 0, column 2"
    assert found.checks is not None
    page = found.page()
    assert page.count("<title>") == 1 + 30
    assert 'viewBox="0 0 10 12"' in page
    (image,) = set(re.findall(r'<image width="10" height="12" href="data:image/png;base64,([^"]*)">', page))
    assert (np.asarray(Image.open(io.BytesIO(base64.b64decode(image)))) == pixels).all()
    assert "image" not in found.to_dict()


def test_small_scores_are_told_apart() -> None:
    assert [signed(score, 0.5) for score in (0.5, -0.0304)] == ["+0.500", "-0.030"]
    assert [signed(score, 0.00512) for score in (0.00512, -0.0003, 0.0)] == ["+0.00512", "-0.00030", "+0.00000"]
    assert signed(0.0, 0.0) == "+0.000"
    assert signed(123.4567, 123.4567) == "+123.457"
