"""Intervals, normal tails, levels, mixtures: pure functions."""
