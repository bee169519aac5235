"""Figures, and what is made of them."""
