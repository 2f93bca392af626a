"""Memory of a process: what is in use, its most since a mark, and what there is."""

import mmap

from longspan.machine import memory

SIZE = 64 << 20


def test_memory_that_is_used_and_freed_is_in_the_peak_since_a_mark() -> None:
    with memory.Peak() as peak:
        before = memory.resident()
        # Pages of its own: an allocator could give memory that the process has already.
        used = mmap.mmap(-1, SIZE)
        for start in range(0, SIZE, mmap.PAGESIZE):
            used[start] = 1
        # Half of it, as other memory may be freed meanwhile.
        assert memory.resident() > before + SIZE // 2
        used.close()
        assert peak.most() > before + SIZE // 2
        memory.release()
        peak.mark()
        assert peak.most() < before + SIZE // 2


def test_there_is_more_memory_than_is_in_use() -> None:
    there = memory.available()
    assert memory.memory_limit() >= there > memory.resident() > 0
