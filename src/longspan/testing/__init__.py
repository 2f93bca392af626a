"""Contracts, as checks that anybody can run on what they made: `check_mixer(MyMixer)`.

The model is scikit-learn's `check_estimator` and `parametrize_with_checks`. Nothing here needs pytest.
"""

from longspan.testing.mixers import check_mixer, mixer_checks

__all__ = ["check_mixer", "mixer_checks"]
