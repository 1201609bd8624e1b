"""A process of a crew: reads a certificate and then tasks, writes answers; see `crew`."""

from __future__ import annotations

import os
import pickle
import queue
import sys
import threading
import time
from typing import BinaryIO

from sailor.solve.certificate import Certificate
from sailor.solve.crew import Answer, Order
from sailor.solve.search import Budget


def main() -> None:
    """Work until the input ends."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is no answer
    orders: queue.SimpleQueue[Order] = queue.SimpleQueue()
    certificate: Certificate = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_read, args=(sys.stdin.buffer, orders), daemon=True).start()
    while True:
        order = orders.get()
        certificate.cutoff = order.cutoff
        began = time.process_time()
        value = order.task.run(certificate, Budget(order.left_s, lambda: False))
        pickle.dump(Answer(value, time.process_time() - began), answers)
        answers.flush()


def _read(stream: BinaryIO, orders: queue.SimpleQueue[Order]) -> None:
    """Pass orders on; end the process, whatever it is at, when no more can come."""
    try:
        while True:
            orders.put(pickle.load(stream))
    except (EOFError, OSError):
        os._exit(0)


if __name__ == "__main__":
    main()
