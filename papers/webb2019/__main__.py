"""Run the experiments of the paper, one after the other: python -m papers.webb2019 --quick"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from pathlib import Path

from papers.webb2019 import common, results

EXPERIMENTS = ("collision", "sensitivity", "images", "densenet", "robust", "acasxu")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m papers.webb2019", description=__doc__)
    parser.add_argument("--data", type=Path, help="folder with the data (default: $RARELY_DATA)")
    parser.add_argument(
        "--out", type=Path, help="a folder with one folder per experiment (default: beside the scripts)"
    )
    parser.add_argument("--quick", action="store_true", help="small settings: three minutes in all on two cores")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--figures-only", action="store_true", help="draw what the tables hold, run nothing")
    parser.add_argument("--only", default=",".join(EXPERIMENTS), help="some of them, separated by commas")
    args = parser.parse_args(argv)
    names = args.only.split(",")
    for name in names:
        if name not in EXPERIMENTS:
            common.stop(f"there is no experiment {name!r}; there are {', '.join(EXPERIMENTS)}")
    shared = ["--device", args.device]
    shared += [f"--{flag.replace('_', '-')}" for flag in ("quick", "figures_only") if getattr(args, flag)]
    shared += ["--data", str(args.data)] if args.data else []
    for name in names:
        out = ["--out", str(args.out / name)] if args.out else []
        importlib.import_module(f"papers.webb2019.{name}").main([*shared, *out])
    if not args.quick and args.out is None:
        results.refresh()
        results.publish()


if __name__ == "__main__":
    main()
