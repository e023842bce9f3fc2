"""Where a library lies in memory, from lines as the system writes them."""

from __future__ import annotations

import os
import signal
import threading

import pytest
from helpers import PATIENCE, needs_fork

from clgemm.runtime import mappings

LINES = """\
10000-12000 r-xp 00000000 fe:00 77                                       /lib/one.so
12000-13000 rw-p 00002000 fe:00 77                                       /lib/one.so
13000-15000 rw-p 00000000 00:00 0
20000-21000 r-xp 00000000 fe:00 78                                       /lib/another name.so
23000-24000 rw-p 00001000 fe:00 78                                       /lib/another name.so
30000-31000 rw-p 00000000 00:00 0                                        [heap]
"""


@pytest.mark.parametrize(
    ("address", "found"),
    [
        (0x10010, range(0x10000, 0x15000)),  # with zeros behind it
        (0x12FFF, range(0x10000, 0x15000)),
        (0x20000, range(0x20000, 0x24000)),  # with a gap
        (0x14000, range(0)),  # of no file
        (0x22000, range(0)),  # nothing is there
    ],
)
def test_a_library_reaches_from_its_first_address_to_its_last(
    address, found, tmp_path, monkeypatch
):
    maps = tmp_path / "maps"
    maps.write_text(LINES)
    monkeypatch.setattr(mappings, "_MAPS", maps)
    assert mappings.Mappings().library_around(address) == found


@needs_fork
def test_a_child_forked_while_a_thread_reads_waits_for_nobody(monkeypatch):
    read, begun, free = mappings._read, threading.Event(), threading.Event()

    def slowly(line):
        begun.set()
        free.wait(PATIENCE)
        return read(line)

    monkeypatch.setattr(mappings, "_read", slowly)
    thread = threading.Thread(target=lambda: mappings.Mappings().at(0))
    thread.start()
    assert begun.wait(PATIENCE)
    child = os.fork()
    if not child:
        signal.alarm(20)
        mappings._read = read
        mappings.Mappings().at(0)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    free.set()
    thread.join(PATIENCE)
    assert status == 0
