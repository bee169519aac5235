"""The steps of `Auto`, and which question takes them in what order, from the strategy itself."""

from __future__ import annotations

from made.text import cell


def step_table() -> str:
    from rarely.questions.strategy import Auto, Precision
    from rarely.questions.threshold import Below
    from rarely.questions.verify import Settled

    auto = Auto()
    orders = {
        "`estimate`": Precision(auto.target_error).order,
        "`test`": Below(1e-6, 0.95, rigorous=False).order,
        "`certify`": Below(1e-6, 0.95, rigorous=True).order,
        "`verify`": Settled(None).order,
    }
    rows = [f"| step | why | {' | '.join(orders)} |", f"|---|---|{'---|' * len(orders)}"]
    for name, step in auto.steps.items():
        places = [str(order.index(name) + 1) if name in order else "" for order in orders.values()]
        rows.append(f"| {name} | {cell(step.why)} | {' | '.join(places)} |")
    return "\n".join([*rows, ""])
