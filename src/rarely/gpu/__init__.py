"""Programs for GPUs, in CUDA C: compiled by NVRTC, which torch brings along, when they are first wanted.

Each does what plain torch code elsewhere does, which runs where these cannot: `tests/unit/gpu` compares both.
"""
