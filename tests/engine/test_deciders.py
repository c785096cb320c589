"""What waits in a selection after a packer is all that is held: a file goes with the last row that shows it."""

from __future__ import annotations

import pyarrow as pa
import pytest

from zephon import groups
from zephon.engine.deciders import Deciders
from zephon.engine.faults import Losses
from zephon.operators.shuffle import Shuffle
from zephon.plugin import LaneWindow


def group_of(number: int, rows: int) -> pa.RecordBatch:
    columns = {"image": [bytes([number % 256]) * 5000] * rows}
    made = {name: [0] * rows for name in groups.PROVENANCE} | {groups.ROW: list(range(number * rows, number * rows + rows))}
    fields = {name: pa.array(values, pa.int64()) for name, values in made.items()}
    return pa.RecordBatch.from_pydict(columns | fields)


@pytest.mark.parametrize("rows", [1, 4])
def test_a_shuffle_holds_no_more_groups_than_rows_wait_in_it(rows: int) -> None:
    deciders = Deciders([Shuffle(buffer_size=16)], LaneWindow(7, 0, 0))
    sizes = [groups.nbytes(group_of(0, rows))]
    seen: list[int] = []
    for number in range(300):
        for decision in deciders.add(group_of(number, rows), Losses()):
            seen.append(len(decision.rows))
            assert set(groups.source_numbers(decision.rows).tolist()) == set(decision.sources)
        sizes.append(deciders.nbytes)
    assert max(sizes) <= 17 * sizes[0]  # 16 rows wait, of as many groups at most, beside the one that came
    seen += [len(decision.rows) for decision in deciders.flush(Losses())]
    assert sum(seen) == 300 * rows
    assert deciders.nbytes == 0
