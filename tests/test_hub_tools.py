"""Tools of others with exports for the Hub and with run folders: lm_eval, sentence-transformers and trl themselves.

Each runs in a process of its own. It first loads an export, where only transformers imports longspan. Then it loads a
run folder, after `import longspan.models`.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import interpreters
import pytest
import torch
from language_runs import make_run

from longspan import LongspanModel, export
from longspan.data.text.processor import tokenizer_of
from longspan.verbs.runs import load_run

TEXT = "The first text. A second, somewhat longer one. "
_PROCESS = """\
import json, sys

every = []
for name, trust in FOLDERS:
    if trust:
        assert "longspan" not in sys.modules
    else:
        import longspan.models
    namespace = {"name": name, "trust": trust, "sys": sys}
    exec(CODE, namespace)
    every.append(namespace["found"])
print("\\n" + json.dumps(every))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model that was not trained."""
    return make_run(tmp_path_factory.mktemp("tools") / "run", TEXT * 20)


@pytest.fixture(scope="module")
def exported(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(export(run, tmp_path_factory.mktemp("exports") / "exported", format="hub").folder)


@pytest.fixture(scope="module")
def found_by(run: Path, exported: Path) -> Callable[[str], Any]:
    """A function that runs `code` with an export and with a run folder, and returns what it leaves as `found` for each.

    The code loads `name`, and says `trust` where transformers asks for that.
    """

    def found(code: str) -> Any:
        lines = [f"FOLDERS, CODE = {[(str(exported), True), (str(run), False)]!r}, {code!r}", _PROCESS]
        return json.loads(interpreters.printed("\n".join(lines), run.parent).splitlines()[-1])

    return found


_LM_EVAL = """\
import lm_eval
from lm_eval.tasks import TaskManager

if trust:
    assert "longspan" not in sys.modules
common = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": DATA}}, "test_split": "test"}
likelihood = common | {
    "task": "likelihood", "output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{text}}",
    "metric_list": [{"metric": "byte_perplexity"}],
}
choice = common | {
    "task": "choice", "output_type": "multiple_choice", "doc_to_text": "{{question}}", "doc_to_choice": "choices",
    "doc_to_target": "answer", "target_delimiter": "", "metric_list": [{"metric": "acc"}],
}
continued = common | {
    "task": "continued", "output_type": "generate_until", "doc_to_text": "{{question}}", "doc_to_target": "{{text}}",
    "generation_kwargs": {"until": ["."], "max_gen_toks": 8, "do_sample": False},
    "metric_list": [{"metric": "exact_match"}],
}
done = lm_eval.simple_evaluate(
    "hf", model_args={"pretrained": name, "trust_remote_code": trust}, tasks=[likelihood, choice, continued],
    device="cpu", batch_size=2, task_manager=TaskManager(include_defaults=False), bootstrap_iters=0,
)
found = {task: [values for key, values in scores.items() if key.split(",")[0] in SCORES]
         for task, scores in done["results"].items()}
found["said"] = [sample["filtered_resps"][0] for sample in done["samples"]["continued"]]
"""


def test_lm_eval_scores_a_language_model(found_by: Callable[[str], Any], run: Path, tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    rows = [
        {"text": "The first text.", "question": "The first", "choices": [" text", " zzz"], "answer": 0},
        {"text": "A second one.", "question": "A second", "choices": [" xx", " one"], "answer": 1},
    ]
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    scores = ["byte_perplexity", "acc", "exact_match"]
    code = f"DATA, SCORES = {str(data)!r}, {scores!r}\n{_LM_EVAL}"
    every = found_by(code)
    loaded = load_run(run)
    tokenizer = tokenizer_of(loaded.processor)
    nats, octets = 0.0, 0
    for row in rows:
        ids = torch.tensor([[tokenizer.eos_token_id, *tokenizer.encode(row["text"])]])
        with torch.no_grad():
            losses = loaded.model(ids, labels=ids).losses
        assert losses is not None
        nats, octets = nats + float(losses.sum()), octets + len(str(row["text"]).encode())
    assert len(every) == 2
    for found in every:
        assert found["likelihood"] == [pytest.approx(float(torch.tensor(nats / octets).exp()), rel=1e-3)]
        assert 0 <= found["choice"][0] <= 1
        assert all(isinstance(said, str) for said in found["said"])


_SENTENCES = """\
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

if trust:
    assert "longspan" not in sys.modules
options = {"trust_remote_code": trust}
reads = Transformer(name, config_kwargs=options, model_kwargs=options, processor_kwargs=options)
mean = SentenceTransformer(modules=[reads, Pooling(reads.get_embedding_dimension(), "mean")])
usual = SentenceTransformer(name, trust_remote_code=trust)
found = [model.encode(TEXTS).tolist() for model in (mean, usual)]
"""


def test_sentence_transformers_pools_what_a_model_says(found_by: Callable[[str], Any], run: Path) -> None:
    pytest.importorskip("sentence_transformers")
    texts = ["The first text.", "A second, somewhat longer one."]
    every = found_by(f"TEXTS = {texts}\n{_SENTENCES}")
    assert len(every) == 2
    model, tokenizer = LongspanModel.from_pretrained(run).eval(), tokenizer_of(load_run(run).processor)
    for number, text in enumerate(texts):
        with torch.no_grad():
            said = model(torch.tensor([tokenizer.encode(text)])).last_hidden_state[0]
        # By default, sentence-transformers takes the last token of causal language models.
        for mean, usual in every:
            for found, expected in ((mean, said.mean(0)), (usual, said[-1])):
                torch.testing.assert_close(torch.tensor(found[number]), expected, rtol=1e-4, atol=1e-5)


_SFT = """\
from datasets import Dataset
from trl import SFTConfig, SFTTrainer

if trust:
    assert "longspan" not in sys.modules
arguments = SFTConfig(
    f"{FOLDER}/out", max_steps=6, learning_rate=1e-2, per_device_train_batch_size=4, report_to="none", use_cpu=True,
    bf16=False, logging_steps=1, save_strategy="no", disable_tqdm=True, trust_remote_code=trust,
)
if trust:
    model = name
else:
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained(name)
trainer = SFTTrainer(model, args=arguments, train_dataset=Dataset.from_dict({"text": [TEXT] * 24}))
trainer.train()
trainer.save_model(f"{FOLDER}/{'export' if trust else 'run'}")
found = [row["loss"] for row in trainer.state.log_history if "loss" in row]
"""


def test_trl_trains_a_language_model(found_by: Callable[[str], Any], run: Path, tmp_path: Path) -> None:
    pytest.importorskip("trl")
    code = f"TEXT, FOLDER = {TEXT!r}, {str(tmp_path)!r}\n{_SFT}"
    for losses, folder in zip(found_by(code), ("export", "run"), strict=True):
        assert len(losses) == 6
        assert losses[-1] < losses[0]
        model, before = (LongspanModel.from_pretrained(each) for each in (tmp_path / folder, run))
        assert any(not torch.equal(one, before.get_parameter(name)) for name, one in model.named_parameters())
