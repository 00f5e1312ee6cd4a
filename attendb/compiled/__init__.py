"""Compiled loops over pairs, for sums that torch has no operator for; CPU only."""
