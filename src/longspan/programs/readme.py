"""The README of an exported program, with the lines that load and run it."""

from longspan.data.text.processor import tokenizer_of
from longspan.models import LongspanConfig, LongspanForSequenceClassification, LongspanForTokenClassification
from longspan.models.heads.classification import MULTI_LABEL, REGRESSION
from longspan.programs.exported import Export
from longspan.tasks.base.task import Run


def readme(run: Run, config: LongspanConfig, result: Export) -> str:
    """Return README.md: what the program takes and gives, and lines that run it, with the packages they name."""
    if isinstance(run.model, LongspanForTokenClassification):
        return _of_tagger(result)
    torch = result.format == "torch"
    length = "any number of" if result.longest is None else f"1 to {result.longest}"
    answers = isinstance(run.model, LongspanForSequenceClassification)
    gives = f"(texts, {config.num_labels})" if answers else f"(texts, tokens, {config.vocab_size})"
    library = "torch numpy" if torch else "onnxruntime"
    lines = [
        "import json",
        "",
        *(["import torch"] if torch else ["import numpy as np", "import onnxruntime"]),
        *_tokenized(run, answers),
        *(_TORCH if torch else _ONNX),
        *_printed(config, answers, torch),
    ]
    code = "\n".join(lines).replace("PAD_ID", str(tokenizer_of(run.processor).pad_token_id))
    tokenizers = "tokenizers" if tokenizer_of(run.processor).is_fast else "transformers"
    return f"""# A model of the task {result.task.replace("_", " ")} as a program

`longspan export` wrote `{result.file}` and checked it: on real text, its outputs differ from those of the model
{"with int8 " if result.int8 else ""}by at most {result.difference:.1e}.

It takes `input_ids` and `attention_mask`, int64 (texts, tokens), the mask 1 at tokens and 0 at padding, for any
number of texts of {length} tokens. It gives `logits`, {gives} numbers in float32.
`export.json` has the labels and what was measured.

Run this in the folder of these files. It needs `pip install {library} {tokenizers}`, and not longspan:

```python
{code}
```
"""


def _of_tagger(result: Export) -> str:
    """README.md of a token classifier, which longspan runs."""
    return f"""# A token classifier as a program

`longspan export` wrote `{result.file}` and checked it: on real text, its outputs differ from those of the model
{"with int8 " if result.int8 else ""}by at most {result.difference:.1e}.

It is the network alone. `longspan predict` finds words, computes their features and the best labels of each sentence
from `words.safetensors`, and answers as the run does. It needs `pip install "longspan[export]"`, and does not import
PyTorch:

```bash
longspan predict . letter.txt
longspan predict . letter.txt --format conll
```

```python
from longspan import predict

for found in predict(".", ["The first text.", "A second, somewhat longer one."]):
    print(found.tokens, found.labels, found.scores)
```
"""


def _tokenized(run: Run, answers: bool) -> list[str]:
    """Return the lines from texts to ids and mask, as nested lists."""
    data = run.recipe.data
    keep = "left" if data.keep == "last" else "right"
    special = f", add_special_tokens={answers}"
    if tokenizer_of(run.processor).is_fast:
        lines = ["from tokenizers import Tokenizer", "", 'tokenizer = Tokenizer.from_file("tokenizer.json")']
        # Names of special tokens in a text are text.
        lines += ["tokenizer.encode_special_tokens = True"]
        cut = [f'tokenizer.enable_truncation({data.max_length}, direction="{keep}")']
        encoded = f"tokenizer.encode(text{special}).ids"
    else:
        lines = ["from transformers import AutoTokenizer", "", 'tokenizer = AutoTokenizer.from_pretrained(".")']
        cut = [f'tokenizer.truncation_side = "{keep}"']
        limit = f", truncation=True, max_length={data.max_length}" if data.max_length else ""
        encoded = f"tokenizer.encode(text{special}{limit})"
    if not answers:
        # Documents begin with what ends them.
        encoded = f"[{tokenizer_of(run.processor).eos_token_id}, *{encoded}]"
    return [
        *lines,
        *(cut if data.max_length else []),
        'texts = ["The first text.", "A second, somewhat longer one."]',
        f"rows = [{encoded} for text in texts]",
        "width = max(map(len, rows))",
        "ids = [row + [PAD_ID] * (width - len(row)) for row in rows]",
        "mask = [[1] * len(row) + [0] * (width - len(row)) for row in rows]",
        "",
    ]


_TORCH = [
    'program = torch.export.load("model.pt2").module()',
    "with torch.no_grad():",
    "    logits = program(torch.tensor(ids), torch.tensor(mask)).numpy()",
]
_ONNX = [
    'session = onnxruntime.InferenceSession("model.onnx")',
    'inputs = {"input_ids": np.array(ids), "attention_mask": np.array(mask)}',
    '(logits,) = session.run(["logits"], inputs)',
]


def _printed(config: LongspanConfig, answers: bool, torch: bool) -> list[str]:
    """Return the lines that print what the logits (a NumPy array) mean."""
    if not answers:
        return [
            "for text, row, scores in zip(texts, rows, logits):",
            "    # The likeliest token after each text.",
            "    print(json.dumps([text, tokenizer.decode([int(scores[len(row) - 1].argmax())])]))",
        ]
    if config.problem_type == REGRESSION:
        return ["for text, row in zip(texts, logits):", "    print(json.dumps([text, row.tolist()]))"]
    labels = ['labels = json.load(open("export.json", encoding="utf-8"))["labels"]']
    if config.problem_type == MULTI_LABEL:
        return [
            *labels,
            "for text, row in zip(texts, logits):",
            "    # The probability of each label.",
            "    found = (1 / (1 + 2.718281828459045 ** -row.astype(float))).tolist()",
            "    print(json.dumps([text, dict(zip(labels, found))]))",
        ]
    return [
        *labels,
        "for text, row in zip(texts, logits):",
        "    shares = 2.718281828459045 ** (row - row.max()).astype(float)",
        "    print(json.dumps([text, labels[int(row.argmax())], float(shares.max() / shares.sum())]))",
    ]
