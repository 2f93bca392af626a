"""Continuing a text: the same as recomputing everything, at constant cost, in whole characters."""

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from language_runs import make_run
from transformers import ByT5Tokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from longspan import LongspanConfig, LongspanForCausalLM, cli, generate
from longspan.data.text.processor import tokenizer_of
from longspan.errors import UserError
from longspan.models import MixerStates
from longspan.results import Statistics
from longspan.tasks.base.task import Run
from longspan.tasks.language_modelling import generation as module
from longspan.verbs.runs import load_run

TEXT = "the quick brown fox jumps over the lazy dog.\nöÖ€😀\n" * 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("characters") / "run", TEXT)


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    return load_run(folder)


@pytest.fixture(scope="module")
def byte_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return load_run(make_run(tmp_path_factory.mktemp("bytes") / "run", TEXT, tokens="bytes"))


@torch.no_grad()
def recomputed(run: Run, prompt: str, count: int, seed: int | None = None) -> str:
    """Choose token after token from a forward pass over everything before it: greedily, or by `seed`."""
    ids = [run.model.config.eos_token_id, *tokenizer_of(run.processor).encode(prompt, add_special_tokens=False)]
    random = torch.Generator().manual_seed(seed or 0)
    start = len(ids)
    for _ in range(count):
        logits = run.model(torch.tensor([ids])).logits[0, -1]
        chosen = logits.argmax() if seed is None else torch.multinomial(logits.softmax(-1), 1, generator=random)
        ids.append(int(chosen))
    text: str = tokenizer_of(run.processor).decode(ids[start:])
    return text


@pytest.mark.slow
@pytest.mark.parametrize("prompt", ["", "t", "the quick brown fox jumps", "öÖ€😀"])
def test_the_same_as_recomputing_everything(run: Run, prompt: str) -> None:
    """Prompts shorter and longer than a segment of 8 tokens."""
    text = "".join(generate(run, prompt, max_new_tokens=30, greedy=True, ignore_end=True))
    assert text == recomputed(run, prompt, 30)
    drawn = "".join(generate(run, prompt, max_new_tokens=30, seed=5, ignore_end=True))
    assert drawn == recomputed(run, prompt, 30, seed=5)
    assert drawn != "".join(generate(run, prompt, max_new_tokens=30, seed=6, ignore_end=True))


@pytest.fixture(scope="module")
def slow_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose tokenizer is written in Python: bytes, without a tokenizer.json."""
    folder = make_run(tmp_path_factory.mktemp("slow") / "run", TEXT)
    tokenizer = ByT5Tokenizer()
    torch.manual_seed(1)
    config = LongspanConfig.from_pretrained(
        folder, vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id
    )
    LongspanForCausalLM(config).save_pretrained(folder)
    for path in folder.glob("tokenizer*"):
        path.unlink()
    tokenizer.save_pretrained(folder)
    assert not (folder / "tokenizer.json").exists()
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("prompt", ["", "fox", "öÖ€😀 the lazy dog"])
def test_tokenizers_written_in_python_give_the_same_text(
    slow_folder: Path, prompt: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = load_run(slow_folder)
    assert not tokenizer_of(run.processor).is_fast
    expected = recomputed(run, prompt, 40)
    assert expected
    statistics = Statistics()
    pieces = list(generate(run, prompt, max_new_tokens=40, greedy=True, ignore_end=True, statistics=statistics))
    assert "".join(pieces) == expected
    assert statistics.new_tokens == 40
    arguments = ["--prompt", prompt, "--max-new-tokens", "40", "--greedy", "--ignore-end"]
    assert cli.main(["generate", str(slow_folder), *arguments]) == 0
    assert capsys.readouterr().out.rstrip("\n") == expected.rstrip("\n")


def test_characters_of_tokenizers_written_in_python_are_whole() -> None:
    tokenizer = ByT5Tokenizer()
    told = "öÖ€😀 fox"
    # The context ends within a character, as a prompt that was cut may.
    before = tokenizer.encode("the €", add_special_tokens=False)[:-1]
    text = module._Text(tokenizer, before)
    tokens = tokenizer.encode(told, add_special_tokens=False)
    assert not any(text.add(token) for token in tokens)
    assert text.remaining() == told
    assert module._Text(tokenizer, before).remaining() == ""


@pytest.mark.slow
@pytest.mark.parametrize("mixer", ["relative", "local", "recurrent"])
def test_whatever_the_mixer(mixer: str, tmp_path: Path) -> None:
    made = load_run(make_run(tmp_path / "run", TEXT, mixer))
    text = "".join(generate(made, "the lazy dog", max_new_tokens=20, greedy=True, ignore_end=True))
    assert text == recomputed(made, "the lazy dog", 20)


@pytest.mark.slow
def test_memory_and_work_per_token_are_constant(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Known failure elsewhere: `generate` keeps every id, so that long texts get ever slower and larger."""
    usual, seen = type(run.model).forward, []

    def forward(self: Any, **inputs: Any) -> Any:
        output = usual(self, **inputs)
        states: MixerStates = output.past_key_values
        seen.append((inputs["input_ids"].shape[1], output.logits.shape[1], states.nbytes))
        return output

    monkeypatch.setattr(type(run.model), "forward", forward)
    decoded = []
    usual_decode = type(tokenizer_of(run.processor)).decode

    def decode(self: Any, ids: list[int], **options: Any) -> Any:
        decoded.append(len(ids))
        return usual_decode(self, ids, **options)

    monkeypatch.setattr(type(tokenizer_of(run.processor)), "decode", decode)
    told = Statistics()
    text = "".join(generate(run, "the lazy dog " * 20, max_new_tokens=200, ignore_end=True, statistics=told))
    assert len(text) >= 200
    prompt, made = seen[:33], seen[33:]
    # The start of the document and 260 characters, eight at a time.
    assert sum(tokens for tokens, *_ in prompt) == 261
    assert {tokens for tokens, *_ in prompt} == {8, 5}
    assert {logits for _, logits, _ in seen} == {1}
    assert {tokens for tokens, *_ in made} == {1}
    assert len({size for *_, size in seen}) == 1
    assert max(decoded) <= 40
    assert told.state_bytes == seen[0][2]


def test_pieces_come_as_soon_as_they_are_made(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    usual, steps = module.read_tokens, []

    def read(*arguments: Any) -> Any:
        steps.append(1)
        return usual(*arguments)

    monkeypatch.setattr(module, "read_tokens", read)
    pieces = generate(run, "the", max_new_tokens=50, ignore_end=True)
    assert steps == []
    next(pieces)
    assert len(steps) == 1
    next(pieces)
    assert len(steps) == 2


def test_nothing_about_gradients_leaks_out(run: Run) -> None:
    for _ in generate(run, "the", max_new_tokens=3, ignore_end=True):
        assert torch.is_grad_enabled()


class Scripted:
    """In the place of what chooses tokens: these, one after another."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = iter(tokens)

    def __call__(self, scores: torch.Tensor) -> int:
        return next(self.tokens)


def scripted(run: Run, tokens: list[int], monkeypatch: pytest.MonkeyPatch, **options: Any) -> list[str]:
    monkeypatch.setattr(module, "_Greedy", lambda: Scripted(tokens))
    return list(generate(run, max_new_tokens=len(tokens), greedy=True, **options))


def tokens_of(run: Run, text: str) -> list[int]:
    ids: list[int] = tokenizer_of(run.processor).encode(text, add_special_tokens=False)
    return ids


@pytest.mark.slow
def test_characters_come_whole(byte_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Known failure elsewhere: a character of several bytes comes out as several broken ones."""
    text = "aö€😀" * 20 + "z"
    pieces = scripted(byte_run, tokens_of(byte_run, text), monkeypatch)
    assert pieces == list(text)


def test_broken_bytes_are_shown_as_such(byte_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """As decoding all of them at once shows them; and what begins and never ends, at the end."""
    byte = {value: tokens_of(byte_run, "é€")[place] for place, value in enumerate("é€".encode())}
    lead, follow = byte[0xE2], byte[0x82]
    tokens = [lead, *tokens_of(byte_run, "x"), *[follow] * 100, *tokens_of(byte_run, "y"), lead, follow]
    pieces = scripted(byte_run, tokens, monkeypatch)
    assert "".join(pieces) == "\ufffdx" + "\ufffd" * 100 + "y\ufffd"
    # A continuation byte without a beginning can mean nothing later on: it is not held back for long.
    assert len(pieces) > 100


@given(raw=st.binary(max_size=60))
def test_any_bytes_come_as_all_of_them_at_once_would(raw: bytes, byte_run: Run) -> None:
    """Characters between broken bytes come whole, however many broken ones there are before them."""
    ids = tokenizer_of(byte_run.processor).convert_tokens_to_ids(list(bytes_to_unicode().values()))
    tokens = dict(zip(bytes_to_unicode(), ids, strict=True))
    text = module._Text(tokenizer_of(byte_run.processor), [byte_run.model.config.eos_token_id])
    pieces = [text.add(tokens[byte]) for byte in raw]
    assert "".join([*pieces, text.remaining()]) == raw.decode(errors="replace")


@pytest.mark.slow
@pytest.mark.parametrize("broken", range(20))
def test_a_character_after_broken_bytes(broken: int, byte_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    follow = tokens_of(byte_run, "é")[1]
    pieces = scripted(byte_run, [*[follow] * broken, *tokens_of(byte_run, "😀z")], monkeypatch)
    assert "".join(pieces) == "\ufffd" * broken + "😀z"


def test_words_keep_their_spaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Known failure elsewhere: decoded one by one, words run together."""
    made = load_run(make_run(tmp_path / "run", TEXT, tokens="words"))
    words = ["fox", "jumps", "over", "the", "lazy", "dog"] * 8
    pieces = scripted(made, tokens_of(made, " ".join(words)), monkeypatch, prompt="the quick brown")
    assert "".join(pieces) == " " + " ".join(words)


def test_the_end_of_a_document(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    end = run.model.config.eos_token_id
    tokens = [*tokens_of(run, "fox"), end, *tokens_of(run, "dog")]
    told = Statistics()
    assert "".join(scripted(run, tokens, monkeypatch, statistics=told)) == "fox"
    assert (told.ended, told.new_tokens) == (True, 3)
    told = Statistics()
    assert "".join(scripted(run, tokens, monkeypatch, statistics=told, ignore_end=True)) == "fox<|endoftext|>dog"
    assert (told.ended, told.new_tokens) == (False, 7)


def test_what_is_drawn(run: Run) -> None:
    """Choices narrowed to one token are greedy, whatever the seed."""
    greedy = "".join(generate(run, "the", max_new_tokens=20, greedy=True, ignore_end=True))
    for options in ({"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-5}):
        assert "".join(generate(run, "the", max_new_tokens=20, seed=3, ignore_end=True, **options)) == greedy
    # Two of the likeliest, and no more.
    with torch.no_grad():
        logits = run.model(torch.tensor([[run.model.config.eos_token_id, *tokens_of(run, "the")]])).logits[0, -1]
    drawn = {"".join(generate(run, "the", max_new_tokens=1, top_k=2, seed=seed, ignore_end=True)) for seed in range(20)}
    assert drawn == {tokenizer_of(run.processor).decode([token]) for token in logits.topk(2).indices.tolist()}


@pytest.mark.slow
def test_statistics(run: Run) -> None:
    told = Statistics()
    list(generate(run, "the fox", max_new_tokens=150, ignore_end=True, statistics=told))
    summary = told.summary()
    assert (summary["prompt_tokens"], summary["new_tokens"], summary["ended"]) == (7, 150, False)
    for name in ("tokens_per_second", "early_milliseconds", "late_milliseconds", "state_bytes", "prompt_seconds"):
        assert summary[name] > 0
    assert Statistics().summary()["early_milliseconds"] is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1, got 0"),
        ({"temperature": 0.0}, "temperature must be above 0, got 0.0; for the most likely tokens, use greedy"),
        ({"top_k": -1}, "top_k must be at least 0"),
        ({"top_p": 0.0}, "top_p must be above 0 and at most 1"),
        ({"prompt": "fox{"}, r"expected a prompt of characters that this model has seen, got '{'; leave it out"),
        ({"prompt": "[fox]{"}, r"a prompt of characters that this model has seen, got '\[', '\]', '{'; leave them out"),
    ],
)
def test_what_cannot_be(run: Run, options: dict[str, Any], message: str) -> None:
    """At once, not when the first piece is asked for."""
    with pytest.raises(UserError, match=message):
        generate(run, **options)


def test_positions_that_end(tmp_path: Path) -> None:
    made = load_run(make_run(tmp_path / "run", TEXT, position="learned", max_positions=20))
    assert len("".join(generate(made, "the fox", max_new_tokens=13, ignore_end=True))) >= 13
    with pytest.raises(UserError, match="20 tokens for learned positions, got 21 in a prompt of 8 with the start"):
        generate(made, "the fox", max_new_tokens=14)


def test_the_command_streams(folder: Path, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["generate", str(folder), "--prompt", "the fox", "--max-new-tokens", "30", "--ignore-end", "--seed", "4"]
    assert cli.main([*command, "--stats"]) == 0
    captured = capsys.readouterr()
    expected = "".join(generate(run, "the fox", max_new_tokens=30, seed=4, ignore_end=True))
    assert captured.out == expected + "\n"
    assert re.search(
        r"7 tokens of prompt read in .* s; 30 made in .* s; .* tokens/s; "
        r".* ms per token at first and .* at last; state of [\d,]+ bytes\n$",
        captured.err,
    )
    assert cli.main([*command, "--json"]) == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert (result["text"], result["new_tokens"], result["prompt_tokens"]) == (expected, 30, 7)
    assert captured.err == ""


def test_prompts_from_files(
    folder: Path, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = "".join(generate(run, "fox\nö", max_new_tokens=10, greedy=True)) + "\n"
    (tmp_path / "prompt").write_bytes("fox\nö".encode())
    for source in (str(tmp_path / "prompt"), "-"):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("fox\nö".encode())))
        command = ["generate", str(folder), "--prompt-file", source, "--max-new-tokens", "10", "--greedy"]
        assert cli.main(command) == 0
        assert capsys.readouterr().out == expected


def test_an_interrupt_ends_politely(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was made is there, then one line."""
    usual, steps = module.read_tokens, []

    def read(*arguments: Any) -> Any:
        steps.append(1)
        if len(steps) == 5:
            raise KeyboardInterrupt
        return usual(*arguments)

    monkeypatch.setattr(module, "read_tokens", read)
    command = ["generate", str(folder), "--max-new-tokens", "1000000", "--ignore-end", "--stats"]
    assert cli.main(command) == 130
    captured = capsys.readouterr()
    assert len(captured.out) >= 4
    assert captured.out.endswith("\n")
    *_, stats, last = captured.err.splitlines()
    assert "4 made in" in stats
    assert last == "longspan: interrupted."
