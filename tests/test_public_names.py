"""The public surface: what can be imported, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import attendb

NAMES = """
    Additive Answer AttendbError Bilinear Boxcar ConflictError Conic Constant Cosine Database Dot EditSimilarity
    Entmax15 Epanechnikov Equal Euclidean Exact Gaussian InputError KindError Laplacian Linear MissingValueError
    NGramSimilarity Nearest Normalized NotFoundError PerColumn PlanError Pooling Sampled ScaledDot Score Softmax
    Sparsemax StorageError Thresholded TooLargeError TopK Triangular Uniform Weighting attend
    estimators show_heatmaps
""".split()


def test_public_names_are_pinned():
    assert list(attendb.__all__) == NAMES
    assert sorted(NAMES) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_public_names_exist_and_say_what_they_are(name):
    assert (getattr(attendb, name).__doc__ or "").strip(), f"{name} has no docstring"


@pytest.mark.parametrize(
    "heavy",
    ["lance", "matplotlib", "pandas", "polars", "pyarrow", "rapidfuzz", "rich", "scipy", "sklearn", "sqlglot", "typer"],
)
def test_importing_attendb_loads_nothing_heavy(heavy, loaded_modules):
    assert heavy not in loaded_modules


@pytest.fixture(scope="module")
def loaded_modules() -> set[str]:
    """The modules that a new interpreter holds after `import attendb`."""
    code = "import attendb, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_version_is_that_of_the_package():
    from importlib.metadata import version

    assert attendb.__version__ == version("attendb")
