"""Weightings: one file a family, and `base.py` for the laws. A weighting imports no score and no source."""
