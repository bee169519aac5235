"""What a campaign adds to its problems: time, memory and size of plan, store, page, compare; two workers to one.

    python benchmarks/campaign.py [--quick]

Overhead: problems whose answers are made up, so that only the plan, the driver, the store and the page are left, then
the same problems solved by one real worker with one sample each. CPU time of the driver, which a busy machine changes
less than the clock. Memory is the peak of the process, a new one for each size. Sorting is by the clock in Chromium,
where there is one. Workers: a compute-bound campaign with one and with two, in turns in one run, on both engines, their
start included.
"""

from __future__ import annotations

import json
import math
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

from common import options, parser, table, write_json
from rarely import Campaign
from rarely.campaign.compare import compare_stores
from rarely.campaign.schema import FILE
from rarely.campaign.tasks import Chunk, ChunkAnswer, Solved
from rarely.campaign.work import solve
from rarely.demo import assets
from rarely.report.page import write_page

NETWORK = """
import torch

def net(x):
    total = x.sum(1, keepdim=True)
    return torch.cat([total, 0.3 - total], 1)
"""


SORT = """
const done = arguments[0], heads = [...document.querySelectorAll("[data-sort]")];
let longest = 0;
function next() {
  const head = heads.pop(), start = performance.now();
  if (!head) return done(longest);
  head.click();
  requestAnimationFrame(() => setTimeout(() => { longest = Math.max(longest, performance.now() - start); next(); }));
}
next();
"""


class MadeUp:
    """An engine that answers every chunk at once, with the first real answers over and over."""

    def __init__(self) -> None:
        self._waiting: list[Chunk] = []
        self._known: tuple[Solved, ...] = ()

    def free(self) -> int:
        return 1 - len(self._waiting)

    def submit(self, chunk: Chunk) -> None:
        self._waiting.append(chunk)

    def completed(self, timeout: float) -> list[ChunkAnswer]:
        chunk = self._waiting.pop()
        if chunk.rehearsal:
            return [ChunkAnswer(chunk)]
        self._known = self._known or solve(chunk)
        return [ChunkAnswer(chunk, self._known[: len(chunk.tasks)])]

    def close(self) -> None:
        pass


def trivial(folder: Path, problems: int) -> dict[str, Any]:
    """`problems` problems of 16 inputs: 1,000 images, as often as it takes."""
    images = np.random.default_rng(0).uniform(size=(min(problems, 1000), 16)).astype(np.float32)
    np.savez(folder / "data.npz", images=images)
    (folder / "net.py").write_text(NETWORK)
    return {
        "campaign": {"replicates": max(1, problems // 1000)},
        "networks": [{"path": f"{folder}/net.py:net", "name": "net"}],
        "problems": [{"dataset": str(folder / "data.npz"), "radii": [0.5]}],
        "estimator": {"method": "monte-carlo", "samples": 1},
    }


def overhead(problems: int) -> dict[str, float]:
    """CPU milliseconds a problem, peaks of memory, sizes. Runs in a process of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plan = trivial(folder, problems)
        Campaign(trivial(folder, 1000)).run(folder / "warm", engine=MadeUp()).close()
        marks, memory = [time.process_time()], []

        def mark() -> None:
            marks.append(time.process_time())
            memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)

        campaign = Campaign(plan)
        mark()
        page = folder / "page.html"
        with campaign.run(folder / "out", engine=MadeUp()) as store:
            mark()
            write_page(page, store.header, store.records(), store.witnesses)
            mark()
            compare_stores(store, store)
            mark()
        loaded, sorting = opened(page)
        clock = time.perf_counter()
        campaign.run(folder / "real", workers=1).close()
        worker = time.perf_counter() - clock
        each = [1000 * (b - a) / problems for a, b in pairwise(marks)]
        return {
            "problems": problems,
            "plan": each[0],
            "driver and store": each[1],
            "page": each[2],
            "compare": each[3],
            "solved by a worker, by the clock": 1000 * worker / problems,
            "MB of the driver": memory[1],
            "MB with the page": memory[2],
            "MB with compare": memory[3],
            "store, MB": (folder / "out" / FILE).stat().st_size / 1e6,
            "page, MB": page.stat().st_size / 1e6,
            "seconds to open the page": loaded,
            "seconds to sort it": sorting,
        }


def opened(page: Path) -> tuple[float, float]:
    """Seconds to open a page in Chromium, and to sort it by its slowest column and draw it; NaN without Chromium."""
    chromium, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not chromedriver:
        return math.nan, math.nan
    from selenium import webdriver

    settings = webdriver.ChromeOptions()
    settings.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        settings.add_argument(argument)
    with webdriver.Chrome(settings, webdriver.ChromeService(chromedriver)) as driver:
        clock = time.perf_counter()
        driver.get(page.as_uri())
        loaded = time.perf_counter() - clock
        took = driver.execute_async_script(SORT)
        return loaded, float(took) / 1000


def seconds(engine: Literal["local", "dask"], workers: int, replicates: int) -> float:
    """Seconds of a whole run, the start of its workers included."""
    plan = {
        "campaign": {"replicates": replicates, "batch": 2},
        "networks": [{"path": str(assets() / "signs.onnx")}],
        "problems": [{"dataset": str(assets() / "signs.npz"), "radii": [0.2, 0.3], "clip": [0, 1]}],
        "estimator": {"method": "splitting", "particles": 1000, "islands": 4, "steps": 10},
    }
    with tempfile.TemporaryDirectory() as name:
        campaign, start = Campaign(plan), time.perf_counter()
        campaign.run(Path(name) / "out", engine=engine, workers=workers).close()
        return time.perf_counter() - start


def separately(sizes: Sequence[int]) -> list[dict[str, float]]:
    found = []
    for size in sizes:
        done = subprocess.run([sys.executable, __file__, "--size", str(size)], stdout=subprocess.PIPE, check=True)
        found.append(json.loads(done.stdout))
    return found


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--size", type=int, help="measure the overhead of this many problems and print JSON")
    if "--size" in sys.argv:
        print(json.dumps(overhead(arguments.parse_args().size)))
        return
    args = options(arguments)
    rows = separately((1000, 4000) if args.quick else (1000, 10_000, 100_000))
    print("Milliseconds a problem (CPU time of the driver, one core), peaks of memory, sizes\n")
    print(table(["", *(f"{row['problems']:,}" for row in rows)], [[key, *(r[key] for r in rows)] for key in rows[0]]))
    turns = []
    for engine in ("local", "dask") * (1 if args.quick else 2):
        one, two = (seconds(engine, workers, 3 if args.quick else 8) for workers in (1, 2))
        turns.append({"engine": engine, "one worker, s": one, "two workers, s": two, "ratio": two / one})
    print("\nA compute-bound campaign\n")
    print(table(list(turns[0]), [list(turn.values()) for turn in turns]))
    write_json(args.json, args.device, {"overhead": rows, "workers": turns})


if __name__ == "__main__":
    main()
