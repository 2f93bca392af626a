"""Translation of a made-up language: training, searches, predictions in order, and what is wrong with data."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import target_tasks
import torch
from fake_hub import FakeHub
from phrases import phrases, write_phrases
from target_tasks import QUICK, TINY
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, Trainer

from longspan import UserError, compare, evaluate, export, predict, recipes, train
from longspan.cli import main
from longspan.data.text.processor import tokenizer_of
from longspan.results import TrainingResult
from longspan.tasks.base.seq2seq import search
from longspan.tasks.base.seq2seq.trainer import TargetTrainer
from longspan.tasks.translation.scores import TranslationScores
from longspan.tasks.translation.task import TranslationPrediction
from longspan.testing import check_task
from longspan.training.base import push_run
from longspan.training.deadline import Deadline
from longspan.verbs.runs import load_run
from longspan.verbs.trained import TrainedRun, load


def recipe(data: Any, *more: str) -> Any:
    return target_tasks.recipe("translation", data, *more)


@pytest.mark.slow
def test_the_task_keeps_its_promises(tmp_path: Path) -> None:
    data = write_phrases(tmp_path / "phrases.jsonl", 60)
    # With two vocabularies, and tokens drawn by BPE-dropout, which a resumed run draws alike.
    more = ["training.learning_rate=0.01", "training.beams=2", "training.bpe_dropout=0.2"]
    more += ["data.shared_vocabulary=false", "data.target_vocab_size=300"]
    check_task("translation", data, [*TINY, *more])


@pytest.mark.slow
@pytest.mark.parametrize("evaluates", ["epoch", "no"])
def test_time_is_reserved_for_the_search_of_final_scores(
    evaluates: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new model writes texts without an end: its search takes ten times as long as that of a trained one."""
    now, usual, step = [0.0], TargetTrainer._scores, Trainer.training_step

    def training_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        now[0] += 0.25
        return step(self, *args, **kwargs)

    def scores(self: Any, dataset: Any, some: Any, how: Any, *, intervals: bool) -> Any:
        slow = 10 if self.state.global_step < 10 else 1
        now[0] += 0.1 * slow * len(some) * how.beams + 0.01 * len(dataset)
        return usual(self, dataset, some, replace(how, most=4), intervals=False)

    monkeypatch.setattr(Trainer, "training_step", training_step)
    monkeypatch.setattr(TargetTrainer, "_scores", scores)
    monkeypatch.setattr(Deadline, "clock", staticmethod(lambda: now[0]))
    more = ["training.max_minutes=0.5", "training.num_train_epochs=99", "training.beams=2", "data.test_fraction=0.1"]
    more += [
        "training.translated_examples=4",
        f"training.eval_strategy={evaluates}",
        "training.per_device_train_batch_size=8",
    ]
    data = write_phrases(tmp_path / "phrases.jsonl", 200)
    result = train(recipe(data, *more), run=tmp_path / "run", progress=False)
    assert result.stopped == "deadline"
    assert 0.8 * 30 < now[0] < 1.15 * 30


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> TrainingResult:
    """A run that has learned to translate."""
    folder = tmp_path_factory.mktemp("learned")
    data = write_phrases(folder / "phrases.jsonl", 500)
    more = ["training.max_steps=420", "training.learning_rate=0.01", "model.dropout=0.0", "model.dim=48"]
    more += ["model.short_convolution=3", "training.batch_tokens=512", "training.warmup_steps=40", "training.beams=2"]
    return train(recipe(data, *more, *target_tasks.evaluated(210)), run=folder / "run", progress=False)


@pytest.mark.slow
def test_it_learns_words_and_their_order(learned: TrainingResult) -> None:
    scores = learned.scores["validation"]
    assert isinstance(scores, TranslationScores)
    assert scores.bleu > 90
    assert scores.examples == 50
    low, high = scores.intervals["bleu"]
    assert low <= scores.bleu <= high
    source, target = phrases(1, seed=5)[0]
    (found,) = predict(learned.folder, [source])
    assert found.to_dict()["translation"] == target
    assert found.to_dict().keys() == {"where", "translation", "score"}


@pytest.mark.slow
def test_a_file_is_translated_line_by_line(
    learned: TrainingResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = phrases(5, seed=3)
    path = tmp_path / "test.en"
    path.write_text("".join(f"{source}\n" for source, _ in pairs), encoding="utf-8")
    assert main(["predict", learned.folder, str(path), "--format", "text"]) == 0
    assert capsys.readouterr().out.splitlines() == [target for _, target in pairs]
    # A line without text keeps its place.
    path.write_text(f"\n{pairs[0][0]}\n", encoding="utf-8")
    assert main(["predict", learned.folder, str(path), "--format", "text", "--beams", "3"]) == 2
    assert capsys.readouterr().out.splitlines() == ["", pairs[0][1]]
    found = list(predict(learned.folder, path))
    assert [one.error for one in found] == ["no source", None]
    assert [one.where for one in found] == ["test.en, line 1", "test.en, line 2"]


@pytest.mark.slow
def test_the_best_translations_have_scores(learned: TrainingResult) -> None:
    """Scores are the mean log probabilities that the model gives to the tokens, end included."""
    run = load(learned.folder)
    source = phrases(1, seed=5)[0][0]
    (found,) = (one.to_dict() for one in run.predict([source], beams=4, best=3))
    alternatives = found["alternatives"]
    assert len({one["translation"] for one in alternatives}) == 3
    assert (found["translation"], found["score"]) == (alternatives[0]["translation"], alternatives[0]["score"])
    assert [one["score"] for one in alternatives] == sorted((one["score"] for one in alternatives), reverse=True)
    tokenizer = tokenizer_of(run.processor)
    for one in alternatives:
        read = tokenizer(source, return_tensors="pt", return_token_type_ids=False)
        labels = tokenizer(one["translation"], return_tensors="pt")["input_ids"]
        loss = run.model(**read, labels=labels).loss.item()
        # Scores have six digits after the point, and float32 sums differ by more.
        assert one["score"] == pytest.approx(-loss, abs=1e-4)
    with pytest.raises(UserError, match="best must be at most beams=2, got 3"):
        run.predict([source], beams=2, best=3)
    with pytest.raises(UserError, match=r"has no option 'beam'; did you mean 'beams'\?"):
        run.predict([source], beam=2)
    with pytest.raises(UserError, match="beams must be at least 1, got 0"):
        run.predict([source], beams=0)


@pytest.mark.slow
def test_candidates_are_drawn_alike_in_any_batch(learned: TrainingResult, tmp_path: Path) -> None:
    run = load(learned.folder)
    given = [source for source, _ in phrases(6, seed=5)]
    together = [found.to_dict() for found in run.predict(given, candidates=8, best=3)]
    for source, found in zip(given, together, strict=True):
        (alone,) = (one.to_dict() for one in run.predict([source], candidates=8, best=3))
        assert alone["translation"] == found["translation"]
        assert [one["translation"] for one in alone["alternatives"]] == [
            one["translation"] for one in found["alternatives"]
        ]
        # Float32 sums in batches of other shapes.
        assert alone["score"] == pytest.approx(found["score"], abs=1e-4)
    pairs = write_phrases(tmp_path / "few.jsonl", 6, seed=5)
    assert evaluate(learned.folder, pairs, candidates=4).details["search"] == "the best of 4 candidates"
    for options, problem in (
        ({"candidates": 2, "best": 3}, "best must be at most candidates=2, got 3"),
        ({"candidates": 2, "beams": 3}, "expected candidates without beams, .* got beams=3 and candidates=2"),
        ({"candidates": 2, "length_penalty": 0.8}, "without length_penalty, .* length_penalty=0.8 and"),
        ({"candidates": -1}, "candidates must be at least 0, got -1"),
    ):
        with pytest.raises(UserError, match=problem):
            run.predict(given, **options)


def aligned(run: TrainedRun, sources: list[str], **options: Any) -> list[TranslationPrediction]:
    """Return translations with alignments."""
    found = list(run.predict(sources, alignments=True, **options))
    return [one for one in found if isinstance(one, TranslationPrediction)]


@pytest.mark.slow
def test_words_are_aligned(learned: TrainingResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The colour is last, the verb first, and the others keep their places."""
    run, pairs = load(learned.folder), phrases(20, seed=7)
    found = aligned(run, [source for source, _ in pairs])
    right = [
        link in ([2, 0], [1, 1], [0, 2], [3, 3])
        for one, (_, target) in zip(found, pairs, strict=True)
        if one.translation == target
        for link in one.alignment or []
    ]
    # By chance a quarter would be; on other processors, training ends with other weights.
    assert len(right) > 40
    assert sum(right) > 0.7 * len(right)
    (two,) = aligned(run, [pairs[0][0]], best=2, beams=2)
    first, second = two.alternatives or []
    assert two.alignment == first["alignment"] == found[0].alignment
    assert {target for _, target in second["alignment"]} == {*range(len(second["translation"].split()))}
    path = tmp_path / "test.en"
    path.write_text("".join(f"{source}\n" for source, _ in pairs[:2]), encoding="utf-8")
    assert main(["predict", learned.folder, str(path), "--format", "pharaoh"]) == 0
    written = [" ".join(f"{a}-{b}" for a, b in one.alignment or []) for one in found[:2]]
    assert capsys.readouterr().out.splitlines() == written


@pytest.mark.slow
def test_each_source_is_read_once(learned: TrainingResult) -> None:
    run, read = load(learned.folder), 0

    def count(module: Any, arguments: Any, options: dict[str, torch.Tensor]) -> None:
        nonlocal read
        read += len(options["input_ids"])

    run.model.get_encoder().register_forward_pre_hook(count, with_kwargs=True)
    assert len(list(run.predict([source for source, _ in phrases(5, seed=3)], beams=3, best=2, alignments=True))) == 5
    assert read == 5
    # For its loss and its translation, too.
    scored = run.evaluate(split="validation").scores
    assert read == 5 + scored.examples
    assert scored.loss == pytest.approx(learned.scores["validation"].loss, rel=1e-5)


@pytest.mark.slow
def test_transformers_translates_alike(learned: TrainingResult) -> None:
    tokenizer = AutoTokenizer.from_pretrained(learned.folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(learned.folder)
    texts = [source for source, _ in phrases(3, seed=3)]
    read = tokenizer(texts, return_tensors="pt", padding=True, return_token_type_ids=False)
    ids = model.generate(**read, num_beams=2, max_new_tokens=30)
    ours = [one.to_dict()["translation"] for one in load(learned.folder).predict(texts)]
    assert tokenizer.batch_decode(ids, skip_special_tokens=True) == ours


@pytest.mark.slow
def test_translations_that_never_end_are_cut_and_say_so(learned: TrainingResult) -> None:
    run = load(learned.folder)
    source = phrases(1, seed=5)[0][0]
    (whole,) = (one.to_dict() for one in run.predict([source]))
    (cut,) = (one.to_dict() for one in run.predict([source], max_new_tokens=2))
    assert cut["cut"] is True
    assert whole["translation"].startswith(cut["translation"])
    assert "cut" not in whole
    with torch.no_grad():
        # Without an end, it goes on to the length that the page states.
        run.model.lm_head.bias[run.model.generation_config.eos_token_id] -= 100
    for beams in (1, 3):
        (endless,) = run.predict([source], beams=beams)
        assert endless.to_dict()["cut"] is True
        tokens = tokenizer_of(run.processor)(endless.to_dict()["translation"])["input_ids"]
        read = tokenizer_of(run.processor)(source)["input_ids"]
        # Text that is put together and taken apart may have fewer tokens, and never more.
        assert len(tokens) - 1 <= search.RATIO * len(read) + search.MORE


@pytest.mark.slow
def test_predictions_read_a_limited_number_of_rows_ahead(learned: TrainingResult) -> None:
    read = 0

    def sources() -> Iterator[str]:
        nonlocal read
        for source, _ in phrases(100) * 12:
            read += 1
            yield source

    found = load(learned.folder).predict(sources(), beams=1)
    next(iter(found))
    assert read < 600


@pytest.mark.slow
def test_evaluation_scores_and_shows_translations(learned: TrainingResult, tmp_path: Path) -> None:
    data = write_phrases(tmp_path / "other.jsonl", 20, seed=9)
    found = evaluate(learned.folder, data, beams=1)
    assert found.details["search"] == "greedy search"
    assert found.scores.numbers()["bleu"] > 80
    lines = Path(found.folder, "translations.txt").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 20
    assert Path(found.folder, "bleu_by_length.png").is_file()
    assert sum(row["examples"] for row in found.details["by_length"]) == 20
    report = load_run(Path(learned.folder)).task.evaluation_report(found)
    assert "95 % interval" in report
    assert "tok:13a" in report
    assert found.details["samples"][0]["translation"] in report


@pytest.mark.slow
def test_longer_training_pairs_are_left_out_and_sources_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_phrases(tmp_path / "phrases.jsonl", 60)
    long = {"source": " ".join(["dog"] * 60), "target": "Hund"}
    for name, rows in (("long", [long] * 2), ("test", [long])):
        lines = data.read_text().splitlines()[: 58 if name == "long" else 3] + [json.dumps(row) for row in rows]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    more = ["data.max_length=40", f"data.train={tmp_path}/long.jsonl", f"data.validation={data}"]
    made = recipe("", *more, f"data.test={tmp_path}/test.jsonl")
    result = train(made, run=tmp_path / "run", progress=False)
    assert result.data["skipped"] == {"longer than data.max_length": 2}
    assert "left out 2 training pairs longer than 40 tokens (data.max_length)" in capsys.readouterr().err
    assert result.data["train"]["pairs"] == 58
    assert result.data["test"]["cut_sources"] == 1
    (found,) = predict(tmp_path / "run", [long["source"]])
    assert (found.tokens_read, found.tokens_total) == (40, 61)


@pytest.mark.slow
def test_source_and_target_may_have_a_vocabulary_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = phrases(40)
    apart = ["data.shared_vocabulary=false", "data.target_vocab_size=300"]
    made = recipes.load("translation", [*TINY, *QUICK, *apart]).reading(pairs)
    result = train(made, run=tmp_path / "run", progress=False)
    run = load_run(tmp_path / "run")
    processor = run.processor
    sizes = [len(each) for each in (processor.tokenizer, processor.target_tokenizer)]
    assert sizes[1] == 300 < sizes[0]
    assert run.model.get_encoder().config.vocab_size == sizes[0]
    assert run.model.lm_head.out_features == sizes[1]
    # Each is learned from its side alone.
    assert "ĠHund" in processor.target_tokenizer.get_vocab().keys() - processor.tokenizer.get_vocab().keys()
    # As the model card says, and in an export.
    written = export(run, tmp_path / "hub", format="hub")
    for folder in (tmp_path / "run", tmp_path / "hub"):
        source, target = (AutoTokenizer.from_pretrained(folder, subfolder=name) for name in ("", "target_tokenizer"))
        read = source([pairs[0][0]], return_tensors="pt", return_token_type_ids=False)
        ids = run.model.generate(**read, max_new_tokens=3)
        (found,) = predict(run, [pairs[0][0]], beams=1, max_new_tokens=3)
        assert target.batch_decode(ids, skip_special_tokens=True)[0].strip() == found.to_dict()["translation"]
        assert "target_tokenizer = AutoTokenizer.from_pretrained(name" in (folder / "README.md").read_text()
    assert written.auto_model == "AutoModelForSeq2SeqLM"
    hub = FakeHub()
    hub.install(monkeypatch)
    push_run(tmp_path / "run", "mine", message="")
    assert {"tokenizer.json", "target_tokenizer/tokenizer.json"} < hub.repositories["me/mine"].keys()
    # Another model may start from both, and says that it has two.
    start = f"model.start_from={tmp_path / 'run'}"
    begun = recipes.load("translation", [*QUICK, start]).reading(pairs)
    assert (begun.data.shared_vocabulary, begun.data.target_vocab_size) == (False, 300)
    again = train(begun, run=tmp_path / "again", progress=False)
    assert again.details["start_from"]["loaded"] == ["longspan", "decoder", "lm_head"]
    assert again.data["train"]["tokens"] == result.data["train"]["tokens"]
    other = recipes.load("translation", [*QUICK, start, "data.shared_vocabulary=true", "data.target_vocab_size=0"])
    with pytest.raises(UserError, match=r"expected a target with its own as in .*, got one vocabulary; leave out"):
        train(other.reading(pairs), run=tmp_path / "other", progress=False)


@pytest.mark.slow
def test_data_in_memory_are_pairs(tmp_path: Path) -> None:
    pairs = phrases(40)
    made = recipes.load("translation", [*TINY, *QUICK]).reading(pairs)
    assert train(made, run=tmp_path / "run", progress=False).data["train"]["pairs"] == 36
    lists = ([source for source, _ in pairs], [target for _, target in pairs])
    assert load(tmp_path / "run").evaluate(lists, beams=1).scores.examples == 40


@pytest.mark.slow
@pytest.mark.usefixtures("compared_here")
def test_it_is_compared_with_its_baselines(tmp_path: Path) -> None:
    data = write_phrases(tmp_path / "phrases.jsonl", 60)
    given = [f"data.path={data}", *TINY, *QUICK, "training.beams=1"]
    made = compare(
        "translation", ["softmax"], 1, given, tmp_path / "compare", baselines=["copy", "memory", "dictionary"]
    )
    copied, remembered, worded = made.baselines
    assert copied.error is remembered.error is worded.error is None
    assert remembered.chosen["features"] in ("words", "characters")
    assert remembered.scores["validation"].numbers()["chrf"] > copied.scores["validation"].numbers()["chrf"]
    assert copied.scores["validation"].numbers().keys() == {"bleu", "chrf"}
    assert worded.scores["validation"].numbers()["chrf"] > copied.scores["validation"].numbers()["chrf"] > 0
    assert worded.chosen["steps"] in (1, 3, 5, 10)
    table = (tmp_path / "compare" / "comparison.md").read_text()
    assert "dictionary (baseline)" in table
