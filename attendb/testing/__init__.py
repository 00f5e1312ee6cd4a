"""Help for people who write a score or a weighting: the dense oracle, a comparison that knows ties, the law checks.

dense.py        oracle: every pair at once, float64, under autograd; shares no code with the engine
formulas.py     each score written out naively          rules.py   each weighting written out naively
comparison.py   compare: answer against oracle          laws.py    check_weighting_laws, check_score_laws
"""

from __future__ import annotations

from .comparison import compare
from .dense import OracleAnswer, oracle
from .laws import check_score_laws, check_weighting_laws

__all__ = ["OracleAnswer", "check_score_laws", "check_weighting_laws", "compare", "oracle"]
