"""`longspan.testing.check_model` on many model types: `python benchmarks/model_checks.py [TYPE ...] [--json FILE]`.

Without --json, prints the tables. Scripts that reduce each fault to a few lines are in benchmarks/model_faults.
"""

import argparse
import datetime
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from longspan.errors import UserError
from longspan.machine.environment import environment
from longspan.machine.session import quieten_transformers
from longspan.models import LongspanConfig
from longspan.report import table
from longspan.report.checks import cell
from longspan.results.check import ModelReport
from longspan.testing import check_model, model_checks

ROOT = Path(__file__).parents[1]
#: Recurrent and linear models first, then efficient attention, then softmax attention.
TYPES = (
    *("mamba", "falcon_mamba", "mamba2", "rwkv", "xlstm", "recurrent_gemma", "jamba", "zamba", "zamba2", "bamba"),
    *("nemotron_h", "granitemoehybrid", "falcon_h1", "qwen3_next", "qwen3_5_text", "olmo_hybrid", "kimi_linear"),
    *("minimax", "bailing_hybrid", "lfm2", "lfm2_moe", "lfm3"),
    *("longformer", "big_bird", "reformer", "nystromformer", "yoso", "funnel", "fnet"),
    *("led", "bigbird_pegasus", "pegasus_x", "longt5", "xlnet"),
    *("gpt2", "gpt_neo", "gpt_neox", "llama", "mistral", "qwen3", "gemma2", "gemma3_text", "deepseek_v3", "bloom"),
    *("opt", "mpt", "falcon", "phi3", "ctrl", "modernbert-decoder"),
    *("bert", "roberta", "modernbert", "deberta-v2", "t5", "bart"),
)
#: Mixers of ours, each in a language model.
MIXERS = ("additive", "messages", "competitive_gate", "linear", "gated_linear", "delta", "local", "bounded_memory")
#: Columns of each table.
GROUPS = {
    "Rows and causality": (
        *("padding-on-the-right", "padding-on-the-left", "other-rows", "earlier-inputs", "future-in-outputs"),
        "future-in-gradients",
    ),
    "Caches and packing": (*("cached-steps", "cached-chunks", "cached-padding", "generation", "beams", "packing"),),
    "Precision and programs": (
        *("float16", "bfloat16", "attention-implementations", "training-mode", "gradient-checkpointing", "saving"),
        "logits-to-keep",
    ),
}
# What is wrong and where, read in the code, and where it was reported.
_CHUNKS = (
    "`MambaMixer` gives `mamba_selective_scan` no initial state: several tokens after a cache start from zeros "
    "(`mamba_chunks.py`)",
    "fixed for Mamba 2 only: [#46741](https://github.com/huggingface/transformers/pull/46741)",
)
_MASK = (
    "with the mask of all tokens, a step takes that of the first one; `generate` gives none (`mamba_mask.py`)",
    "the mask in the whole pass: [#41790](https://github.com/huggingface/transformers/pull/41790), merged",
)
_STEPS = (
    "steps do not clamp time steps to `time_step_min`, the whole pass does (`zamba2_time_steps.py`)",
    "the limits: [#48989](https://github.com/huggingface/transformers/pull/48989)",
)
_POSITIONS = (
    "without `position_ids`, each call counts from 0; `generate` gives them (`bamba_positions.py`)",
    "",
)
_BATCH = ("a step adds (b, d) to (b, 1, d): rows are mixed, and b tokens come back (`rwkv_batch.py`)", "")
_GRIFFIN = (
    "the recurrent block ignores `attention_mask`: padding is in the short convolution (`recurrent_gemma_padding.py`)",
    "[#31201](https://github.com/huggingface/transformers/issues/31201), closed",
)
_MLSTM = ("float32 keys are multiplied by half-precision values, without a cache (`xlstm_float16.py`)", "")
_SHORT = (
    "after a short row, all later rows are read with full attention (`big_bird_short.py`)",
    "[#20031](https://github.com/huggingface/transformers/issues/20031), closed",
)
_REFORMER = (
    "`position_ids` are padded with a range that ends before it begins (`reformer_positions.py`)",
    "the same function: [#10675](https://github.com/huggingface/transformers/issues/10675), closed",
)
_CONVOLUTION = ("the convolution over values is not masked (`nystromformer_padding.py`)", "")
_YOSO = (
    "`1 + mask / 10000` is 0 for a mask of -10000; the mask is -3.4e38 (`yoso_padding.py`)",
    "",
)
_POOLING = ("padding is in the means of pooled positions (`funnel_padding.py`)", "")
_CACHED = ("cached-steps", "cached-chunks", "cached-padding", "generation", "beams")
#: Faults by model type and check.
FAULTS: dict[str, dict[str, tuple[str, str]]] = {
    "mamba": {"cached-chunks": _CHUNKS, "cached-padding": _MASK},
    "falcon_mamba": {"cached-chunks": _CHUNKS, "cached-padding": _MASK},
    "jamba": {"cached-chunks": _CHUNKS},
    "zamba": {"cached-chunks": _CHUNKS},
    "rwkv": dict.fromkeys(("cached-steps", "cached-chunks"), _BATCH),
    "xlstm": dict.fromkeys(("float16", "bfloat16"), _MLSTM),
    "recurrent_gemma": dict.fromkeys(("padding-on-the-left", "generation"), _GRIFFIN),
    "zamba2": dict.fromkeys(_CACHED, _STEPS),
    "nemotron_h": dict.fromkeys(_CACHED, _STEPS),
    "bamba": dict.fromkeys(("cached-steps", "cached-chunks", "beams"), _POSITIONS),
    "minimax": {
        "beams": ("`MiniMaxCache` does not reorder its `linear_cache` (`minimax_beams.py`)", ""),
    },
    "big_bird": {"earlier-inputs": _SHORT},
    "bigbird_pegasus": {"earlier-inputs": _SHORT},
    "reformer": dict.fromkeys(("padding-on-the-left", "packing"), _REFORMER),
    "nystromformer": dict.fromkeys(("padding-on-the-right", "padding-on-the-left"), _CONVOLUTION),
    "yoso": dict.fromkeys(("padding-on-the-right", "padding-on-the-left"), _YOSO),
    "funnel": dict.fromkeys(("padding-on-the-right", "padding-on-the-left"), _POOLING),
    "longt5": {
        "float16": (
            "the local mask holds -1e10, in float16 -inf: gradients are NaN (`longt5_float16.py`)",
            "NaN in training: [#17978](https://github.com/huggingface/transformers/issues/17978), closed",
        ),
    },
}


def checked(types: tuple[str, ...]) -> list[ModelReport]:
    """Return a report of each type, and of language models with our mixers if all are checked."""
    found = []
    ours = [
        LongspanConfig(mixers=[name], causal=True, dim=32, heads=4, vocab_size=40, pad_token_id=0) for name in MIXERS
    ]
    for one in [*types, *(ours if types == TYPES else ())]:
        try:
            report = check_model(one)
        except UserError as error:
            print(error, file=sys.stderr)
            continue
        print(f"{report.model}: {report.seconds:.1f} s, {len(report.failed)} failed", file=sys.stderr, flush=True)
        found.append(report)
    return found


def name_of(report: ModelReport, number: int) -> str:
    """Return the name of a row."""
    return f"longspan, `{MIXERS[number]}`" if report.model == "longspan" else f"`{report.model}`"


def rows_of(reports: list[ModelReport], columns: tuple[str, ...]) -> list[list[str]]:
    """Return the cells of a table: failures in bold."""
    ours, rows = 0, []
    for report in reports:
        name = name_of(report, ours)
        ours += report.model == "longspan"
        cells = [cell(report.of(column)) for column in columns]
        rows.append([name, *(f"**{one}**" if one.startswith("FAILED") else one for one in cells)])
    return rows


def faults_of(reports: list[ModelReport]) -> list[list[str]]:
    """Return a row for each check that failed."""
    rows = []
    for report in reports:
        for check in report.failed:
            what, known = FAULTS.get(report.model, {}).get(check.check, ("**not examined**", ""))
            size = check.reason.partition(":")[0] if check.deviation is None else f"{check.deviation:.1e}"
            size = "not finite" if size == "inf" else size
            rows.append([f"`{report.model}`", check.check, size, what, known or "not found"])
    return rows


def section(reports: list[ModelReport], seconds: float) -> dict[str, Any]:
    """Section of the results, as docs/results.py reads it."""
    machine = environment()
    versions = ", ".join(f"{name} {version}" for name, version in reports[0].versions.items())
    theirs = [report for report in reports if report.model != "longspan"]
    faulty = [report for report in theirs if report.failed]
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    tables = [
        {
            "caption": f"{caption}: largest deviation, relative to the largest output (half precision: distance to "
            "float32, and only finite numbers are asked for).",
            "columns": ["model", *(column.replace("-", " ") for column in columns)],
            "rows": rows_of(reports, columns),
        }
        for caption, columns in GROUPS.items()
    ]
    tables.append(
        {
            "caption": "Faults and their causes. Not found: a search of issues and pull requests found no report.",
            "columns": ["model", "check", "deviation", "what is wrong", "reported"],
            "rows": faults_of(theirs),
        }
    )
    return {
        "title": "Model checks",
        "area": "model-checks",
        "position": 111,
        "what": f"`longspan check` on {len(theirs)} model types of transformers, tiny and with random weights: "
        f"{sum(len(report.failed) for report in theirs)} checks of {len(faulty)} types fail. Language models with "
        f"{len(MIXERS)} of our mixers pass all checks that apply.",
        "commands": ["OMP_NUM_THREADS=1 python benchmarks/model_checks.py --json benchmarks/results/model-checks.json"],
        "commit": commit.stdout.strip(),
        "date": datetime.date.today().isoformat(),
        "hardware": f"{machine['processor']} ({machine['cpu_capability']}), {machine['threads']} threads",
        "seeds": "one",
        "tables": tables,
        "targets": [
            {
                "what": "Model types of transformers that are checked",
                "target": "at least 25",
                "ours": str(len(theirs)),
                "best_rival": "",
                "met": len(theirs) >= 25,
            }
        ],
        "notes": [
            f"Versions: {versions}. Without `causal_conv1d`, `mamba_ssm` and `fla`, whose kernels some models use on "
            "GPUs.",
            f"Tolerance {1e-4:.0e}. All {len(reports)} models took {seconds:.0f} s.",
            '"not claimed": it deviates, and the model does not claim otherwise. "refused": the model raises an error '
            'that says so. "-": nothing to check.',
            "Causes were read in the code of the models, except for six: those of `falcon_mamba`, `jamba`, `zamba`, "
            "`zamba2`, `bigbird_pegasus` and `funnel` are inferred from shared code or from the script.",
            "`benchmarks/model_faults` has a script of a few lines for each fault. No check covers that of "
            "`float64_padding.py`: `eager_attention_forward` gives NaN in float64 with padding on the left.",
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.partition("\n")[0])
    parser.add_argument("types", nargs="*", metavar="TYPE", help="model types (default: all)")
    parser.add_argument("--json", type=Path, help="file for the section of the results")
    arguments = parser.parse_args()
    quieten_transformers()
    reports = checked(tuple(arguments.types) or TYPES)
    made = section(reports, sum(report.seconds for report in reports))
    known = {column for columns in GROUPS.values() for column in columns} | {"influence", "compilation"}
    assert known == set(model_checks()), "a check is in no table"
    if arguments.json:
        arguments.json.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    else:
        for one in made["tables"]:
            print(f"{one['caption']}\n\n{table(one['columns'], one['rows'], 'github')}\n")


if __name__ == "__main__":
    main()
