"""Results of `longspan compare` for people: `comparison_summary`."""

import itertools

from longspan.report import SPLITS, count, duration, number, parts, size, spread, table
from longspan.results import ComparedBaseline, Comparison


def comparison_summary(result: Comparison, style: str = "simple") -> str:
    """Summary that `longspan compare` prints: tables, scores of baselines and parts, and whether a baseline wins."""
    counted = [row for row in result.baselines if row.error is None]
    scored = {split for row in result.summary for split in row.scores} | {
        split for row in counted for split in row.scores
    }
    keys = [
        (split, name, f"{split} {word}")
        for split, (name, word) in itertools.product(SPLITS, result.kind.shown().items())
        if split in scored
    ]
    rows = [
        [
            row.mixer,
            *(spread(row.scores.get(split, {}).get(name)) for split, name, _ in keys),
            count(row.steps.mean),
            duration(row.seconds.mean),
            count(row.tokens_per_second.mean),
            size(row.peak_memory_bytes),
            count(row.parameters),
            str(row.seeds),
        ]
        for row in result.summary
    ]
    rows += [
        [
            f"{row.baseline} (baseline)",
            *(
                number(row.scores[split].numbers().get(name) if split in row.scores else None)
                for split, name, _ in keys
            ),
            count(None),
            duration(row.seconds),
            count(None),
            size(row.peak_memory_bytes),
            count(row.parameters),
            "1",
        ]
        for row in counted
    ]
    done = {row.mixer for row in result.summary}
    lost = [run.mixer for run in result.runs if run.mixer not in done]
    lost += [f"{row.baseline} (baseline)" for row in result.baselines if row.error is not None]
    rows += [[f"{name}: failed", *[count(None)] * (len(keys) + 5), "0"] for name in dict.fromkeys(lost)]
    headers = [
        "mixer",
        *(words for *_, words in keys),
        "steps",
        "time",
        "tokens/s",
        "peak memory",
        "parameters",
        "seeds",
    ]
    told = [_baseline(row) for row in counted] + _verdicts(result)
    failed = [f"{run.mixer}, seed {run.seed}, failed: {run.error}" for run in result.runs if run.error is not None]
    failed += [f"{row.baseline} (baseline) failed: {row.error}" for row in result.baselines if row.error is not None]
    listed = table(headers, rows, style)
    if "\n\n" in listed:
        # Too wide for one table: the scores of each split, then what the runs cost.
        splits = [split for split, *_ in keys]
        groups = [[place for place, name in enumerate(splits, 1) if name == split] for split in dict.fromkeys(splits)]
        groups.append([*range(len(keys) + 1, len(headers))])
        listed = "\n\n".join(
            table([headers[place] for place in (0, *group)], [[row[place] for place in (0, *group)] for row in rows])
            for group in groups
        )
    return "\n\n".join([listed, *parts.of_mixers(result, style), *told, *failed])


def _baseline(row: ComparedBaseline) -> str:
    """Say what a baseline does."""
    chosen = ", ".join(f"{name} {value}" for name, value in row.chosen.items())
    return f"{row.baseline}: {row.does}" + (f" Chosen on the validation split: {chosen}." if chosen else "")


def _verdicts(result: Comparison) -> list[str]:
    """Say for each split whether the best baseline has a better headline score than the best mixer."""
    name = result.kind.headline()
    word = result.kind.shown()[name]
    best = max if result.kind.higher_is_better() else min
    told = []
    for split in SPLITS:
        mixers = {row.mixer: row.scores[split][name].mean for row in result.summary if split in row.scores}
        others = {row.baseline: row.scores[split].numbers()[name] for row in result.baselines if split in row.scores}
        if not mixers or not others:
            continue
        mixer, other = (best(found, key=lambda key: found[key]) for found in (mixers, others))
        ours, theirs = mixers[mixer], others[other]
        if number(ours) == number(theirs):
            told.append(
                f"On the {split} split the baseline {other} is as good as the best mixer, {mixer}: {word} "
                f"{number(theirs)}."
            )
        elif best(ours, theirs) == theirs:
            told.append(
                f"On the {split} split the baseline {other} wins: {word} {number(theirs)}, against {number(ours)} of "
                f"the best mixer, {mixer}."
            )
        else:
            told.append(
                f"On the {split} split no baseline wins: {word} {number(ours)} of the best mixer, {mixer}, against "
                f"{number(theirs)} of the best baseline, {other}."
            )
    return told
