"""`python -m rarely.campaign.worker FD`: a process of the local engine. It ends when the driver is gone."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from multiprocessing import connection


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the driver, which then stops its workers
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    line = connection.Connection(int(sys.argv[1]))
    from rarely.campaign.work import answer

    try:
        line.send(None)  # ready
        while True:
            line.send(answer(line.recv()))
    except (EOFError, OSError):
        return


def _end_with(driver: int) -> None:
    """End this process soon after its driver, even in the middle of a long chunk."""
    while os.getppid() == driver:
        time.sleep(0.5)
    os._exit(1)


if __name__ == "__main__":
    main()
