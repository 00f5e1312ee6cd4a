"""Scores a(q, k): one file a family, and `base.py` for the contract. A score imports no weighting and no source."""
