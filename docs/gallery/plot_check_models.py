"""
Check models of transformers
============================

``longspan.testing.check_model`` builds a tiny model of any type and tests what every sequence model should keep:
padding, causality, caches and more. The figure has the size of each deviation.
"""

# %%
# Check three models
# ------------------
# Weights are random, and nothing is downloaded. The last model has a fault: it ignores the mask of padding.

import matplotlib.pyplot as plt
import torch
from transformers import GPT2LMHeadModel

from longspan.testing import check_model


class SeesPadding(GPT2LMHeadModel):
    def forward(self, input_ids, attention_mask=None, **more):
        if attention_mask is not None:
            attention_mask = torch.ones_like(attention_mask)
        return super().forward(input_ids, attention_mask=attention_mask, **more)


CHECKS = [
    "padding-on-the-right",
    "padding-on-the-left",
    "other-rows",
    "cached-steps",
    "cached-chunks",
    "cached-padding",
]
reports = [check_model(model, only=CHECKS) for model in ("gpt2", "mistral", SeesPadding)]
for report in reports:
    print(f"{report.model}: {', '.join(check.check for check in report.failed) or 'no check'} failed")

# %%
# Deviations
# ----------
# They are relative to the largest output. Rounding in float32 stays far below the tolerance, a fault far above it.

figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
for report, marker in zip(reports, "osD", strict=True):
    sizes = [max(check.deviation, 1e-8) for check in report.checks]
    axes.plot(sizes, range(len(sizes)), marker, label=report.model, alpha=0.8)
axes.axvline(report.checks[0].tolerance, color="grey", linestyle="--", label="tolerance")
axes.set(xscale="log", xlabel="deviation", yticks=range(len(CHECKS)), yticklabels=CHECKS)
axes.invert_yaxis()
axes.legend(loc="center right")
plt.show()

# %%
# Take away: a model that ignores padding on the left gives wrong outputs without an error, and a check of a second
# finds it. The page :doc:`/guides/checking-models` lists all checks.
