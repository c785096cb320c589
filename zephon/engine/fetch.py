"""From a planned chunk to a record group: read units, take rows, add provenance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from zephon import groups
from zephon.arrays import to_arrow
from zephon.dataset import Dataset
from zephon.engine.bundles import Bundle, Pick, check_maps, collected, in_order
from zephon.engine.faults import Failure, Losses, Policy, Streak
from zephon.engine.keep import Keep, Line, Taken
from zephon.engine.pieces import Block, Piece, apart, at_most, cut, joined, whole
from zephon.engine.schemas import source_schema, with_provenance
from zephon.errors import DataError, RecipeError, ZephonError
from zephon.exclusion import is_excluded
from zephon.hashing import hash_array, hash_group
from zephon.keys import I64, key
from zephon.plan.source import Chunk, Plan
from zephon.views import BYTES, LISTS, stands_for, take_from, viewable

_ONE_PIECE = 256 << 20
_MANY_RUNS = 64
_LASTING_UNITS = 256
"""So many units of mapped files are held open. They take no memory, but each costs a third of a millisecond to open."""
_AHEAD, _AHEAD_BYTES = 4, 32 << 20
"""So many bundles of a lane, or bytes if that is more, whose shards are fetched into the cache on disk before they are read. One bundle
is not enough: reading it takes less time than fetching a shard."""
_JOBS = 16
"""Parts of a bundle that are read one by one; threads that wait for it read some of them."""

Read = tuple[list[Piece], dict[int, ZephonError], bool]
"""Rows in pieces that follow one another, the errors of those that could not be read, and whether all of them last."""
Share = Callable[[Sequence[Callable[[], Read]]], list[Read]]
"""Does jobs, perhaps in several threads."""


class Fetcher:
    """Reads the chunks of one process's lanes. `fetch` may run in several threads at once.

    Args:
        plan: where each lane's rows are.
        datasets: in mixture order.
        columns: the columns that the pipeline needs; None: all.
        keep_bytes: how much decoded data to keep for lanes that share it.
        policy: what becomes of rows that can't be read.
        keys: `fetch` says for each group what its content is, as a hash.
        views: `fetch` may give lists as list views of the bundle's memory, but never of a map.
        shows: it may give text and bytes as views, of maps too: `check_shown` says whether a group still shows what was fetched.
        shown: it may give these columns as views of the bundle's memory, but never of a map.
    """

    def __init__(
        self,
        plan: Plan,
        datasets: Sequence[Dataset],
        *,
        columns: Sequence[str] | None,
        keep_bytes: int,
        policy: Policy,
        keys: bool = False,
        views: bool = False,
        shows: bool = False,
        shown: frozenset[str] = frozenset(),
    ) -> None:
        self.plan = plan
        self.datasets = list(datasets)
        self.policy = policy
        self._keys = keys
        self._views = views
        self._shows = shows
        self._keep = BYTES if shows else LISTS if views else frozenset[int]()
        self.schema = source_schema(self.datasets, columns, [rows is not None for rows in plan.rows])
        self.made_schema = with_provenance(self.schema)
        self._shown = frozenset(f.name for f in self.schema if f.name in shown and viewable(f.type))
        self.columns = [self._columns_of(d) for d in self.datasets]
        self.units: Keep[list[pa.RecordBatch]] = Keep(keep_bytes // 2, lambda made: sum(g.nbytes for g in made))
        self.bundles: Keep[Bundle] = Keep(keep_bytes // 2, lambda made: made.nbytes)
        self.line = Line()
        """In which chunks are begun, by those who ask for it."""
        self._lasting: Keep[list[Block] | None] = Keep(_LASTING_UNITS, lambda _: 1)
        """Units that lie in maps of files, or in data sets in memory; None: this one doesn't."""
        self._fleeting: set[tuple[int, int]] = set()
        """Shards, by component, of which a unit was found not to: their units aren't read to find out."""
        self._newest: dict[tuple[int, int], int] = {}
        """The last bundle that was asked for, by component and lane."""
        self._ahead: dict[tuple[int, int], int] = {}
        """The last bundle that was fetched ahead, by component and lane."""
        self._mapped: set[int] = set()
        """The components of which bundles are views of maps."""
        all_fit = sum(d.units.total_bytes for d in self.datasets) <= self.units.limit
        self._taken: Taken | None = None if all_fit else Taken(self.units)
        self._excluded = [d.excluded or None for d in self.datasets]

    def _columns_of(self, dataset: Dataset) -> list[str] | None:
        mine = [name for name in dataset.schema.names if self.schema.get_field_index(name) >= 0]
        # a reader that is asked for no column at all would lose the number of rows
        return mine if 0 < len(mine) < len(dataset.schema.names) or dataset.columns is not None else None

    def at_hand(self, chunk: Chunk) -> bool:
        """Whether all bundles that a chunk draws from are in memory, so that `fetch` is a matter of microseconds."""
        for component in chunk.counts:
            if self.datasets[component].in_memory:
                continue
            rows = self.plan.rows[component]
            index = chunk.index[chunk.component == component]
            assert rows is not None
            first, last = int(index[0]) // rows.bundle, int(index[-1]) // rows.bundle
            if not all(self.bundles.has((component, chunk.lane, number)) for number in range(first, last + 1)):
                return False
        return True

    def fetch(self, chunk: Chunk, place: int | None = None) -> tuple[pa.RecordBatch, Losses, int]:
        """The chunk's records in drawn order, less those that are excluded or (by policy) unreadable; and with `keys` a hash
        of what they hold, else 0. `place`: in the `line`."""
        if place is None:
            return self._fetch(chunk, None)
        self.line.wait(place)
        try:
            return self._fetch(chunk, partial(self.line.leave, place))
        finally:
            self.line.leave(place)

    def _fetch(self, chunk: Chunk, begun: Callable[[], None] | None) -> tuple[pa.RecordBatch, Losses, int]:
        losses = Losses()
        picks: list[Pick] = []
        names: list[tuple[int, int, int]] = []
        failed: list[tuple[int, Failure]] = []
        for component, count in chunk.counts.items():
            here = np.arange(count) if count == len(chunk) else np.flatnonzero(chunk.component == component)
            rows = self.plan.rows[component]
            assert rows is not None
            bundle, offset = rows.draw(chunk.lane, chunk.index[here])
            numbers = range(int(bundle[0]), int(bundle[-1]) + 1)  # a lane draws its rows in turn
            start = 0
            for number, stop in zip(numbers, np.searchsorted(bundle, numbers, side="right").tolist(), strict=True):
                made = self._bundle(component, chunk.lane, number, begun)
                names.append((component, chunk.lane, number))
                mine, place = offset[start:stop], here[start:stop]
                kept = self._kept(made, mine, component, losses)
                if kept is not None:
                    for i in kept[1].tolist():
                        failure = Failure.of(made.bad[int(mine[i])], component=component, operator="source")
                        failed.append((int(place[i]), failure))
                    mine, place = mine[kept[0]], place[kept[0]]
                if len(mine):
                    picks.append(Pick(made, mine, place))
                start = stop
        _count_failures(failed, picks, losses)
        if not picks:
            return groups.empty_group(self.made_schema), losses, 0
        try:
            check_maps(picks)  # to touch what was cut off a map would end the process
            group, content = self._collect(picks)
            if not self._shows:  # else `check_shown` will be asked
                check_maps(picks)
        except DataError:
            # a map was written to since its bundle was made, which is made anew: without these rows, or with their error
            for name in names:
                self.bundles.drop(name)
            return self._fetch(chunk, begun)
        return group, losses, content

    def check_shown(self, group: pa.RecordBatch) -> None:
        """Raises `DataError` where a file whose rows the group has is not any more what it was when they were fetched."""
        if not self._mapped:
            return
        shards = groups.ints(group, groups.SHARD).tolist()
        if len(self.datasets) == 1:
            self.datasets[0].check(set(shards))
            return
        for component, shard in set(zip(groups.ints(group, groups.COMPONENT).tolist(), shards, strict=True)):
            if component in self._mapped:
                self.datasets[component].check((shard,))

    def _collect(self, picks: Sequence[Pick]) -> tuple[pa.RecordBatch, int]:
        """The picked rows as one group, by their places in the chunk, and their key."""
        number, offset = in_order(picks)
        bundles = [pick.bundle for pick in picks]
        content = 0
        if self._keys:
            digest = xxhash.xxh3_64(number.tobytes())
            digest.update(offset.tobytes())
            for bundle in bundles:
                digest.update(bundle.content.to_bytes(8, "little"))
            content = digest.intdigest()
        keep, shown = self._keep, self._shown
        if any(b.verify is not None for b in bundles):
            keep, shown = keep - LISTS, frozenset()
        owned = sum(len(piece) for b in bundles if b.owns for piece in b.pieces)
        if len(offset) < owned:  # a few rows would keep all of it in memory
            keep = keep - BYTES
        return collected(bundles, number, offset, self.made_schema, keep, shown), content

    def _kept(self, bundle: Bundle, offset: I64, component: int, losses: Losses) -> tuple[I64, I64] | None:
        """Which of the drawn rows are neither excluded nor unreadable, and which are unreadable; None: all are there."""
        if not bundle.bad and bundle.excluded is None:
            return None
        good = np.ones(len(offset), dtype=bool)
        if bundle.excluded is not None:
            out = bundle.excluded[offset]
            good &= ~out
            losses.drop("source", "excluded", {component: int(out.sum())})
        bad = np.flatnonzero(good & np.isin(offset, list(bundle.bad)))
        if len(bad):
            if self.policy == "raise":
                raise bundle.bad[int(offset[bad[0]])]
            good[bad] = False
            losses.drop("source", "unreadable", {component: len(bad)})
        return np.flatnonzero(good), bad

    # -------------------------------------------------------------------------------------------------- bundles

    def _bundle(self, component: int, lane: int, number: int, begun: Callable[[], None] | None) -> Bundle:
        self._prefetch(component, lane, number)  # before the read, which may wait for the network
        made = self.bundles.together(
            (component, lane, number), lambda crew: self._read_bundle(component, lane, number, crew.share), begun
        )
        # a lane never goes back; only the chunk before this one may still be at the bundle before, and it may come here later
        newest = self._newest.get((component, lane), number)
        if number >= newest:
            self._newest[component, lane] = number
            for old in range(newest - 1, number - 1):
                self.bundles.drop((component, lane, old))
        elif number < newest - 1:
            self.bundles.drop((component, lane, number))
        return made

    def _prefetch(self, component: int, lane: int, number: int) -> None:
        """Have the shards of a lane's next few bundles fetched into the cache on disk, where there is one."""
        dataset, rows = self.datasets[component], self.plan.rows[component]
        if not dataset.has_cache or rows is None:
            return
        size = rows.bundle * dataset.units.total_bytes // rows.total_rows
        first = max(number, self._ahead.get((component, lane), -1)) + 1
        last = number + max(_AHEAD, _AHEAD_BYTES // max(size, 1))
        if first > last:
            return
        self._ahead[component, lane] = last
        limit = self.plan.last_flat_row(component)
        for bundle in range(first, last + 1):
            flat = rows.bundle_flat(lane, bundle)
            dataset.prefetch(rows.resolve(flat if limit is None else flat[flat < limit])[1])

    def close(self) -> None:
        """Let go of what is kept, and stop fetching ahead."""
        self.units.clear()
        self._lasting.clear()
        self.bundles.clear()
        for dataset in self.datasets:
            dataset.cancel_prefetch()

    def _read_bundle(self, component: int, lane: int, number: int, share: Share) -> Bundle:
        rows = self.plan.rows[component]
        assert rows is not None
        limit = self.plan.last_flat_row(component)
        pass_index, unit, row = rows.bundle_rows(lane, number, limit)
        dataset = self.datasets[component]
        shard = dataset.units.shard[unit]
        shard_row = dataset.row_of(unit, row)
        known: list[npt.NDArray[Any]] = [np.full(len(unit), component, np.int32), pass_index, shard.astype(np.int32), shard_row]
        excluded = self._excluded[component]
        out = None if excluded is None else is_excluded(excluded, shard, shard_row)
        out = out if out is not None and out.any() else None
        pieces, bad, lasts = self._pieces(component, unit, row, share)
        shares = dataset.shares_files
        if len(pieces) == 1 or at_most(pieces, _ONE_PIECE - sum(k.nbytes for k in known)):
            group, content = self._joined(pieces, known, lasts, copied=shares and len(pieces) == 1)
            made = [group]
        else:
            lasts, begin, made = False, 0, []
            for piece in pieces:
                mine = [to_arrow(k[begin : begin + len(piece)]) for k in known]
                one = pa.RecordBatch.from_arrays([*piece.group.columns, *mine], schema=self.made_schema)
                made.append(groups.copied([one]) if shares else one)
                begin += len(piece)
            content = key(*map(hash_group, made)) if self._keys else 0
        if shares and not lasts:
            try:
                dataset.check(np.unique(np.delete(shard, list(bad))).tolist())
            except DataError:  # a file was written to since it was mapped: read again, which says so
                for old in np.unique(unit).tolist():
                    self.units.drop((component, old))
                    self._lasting.drop((component, old))
                return self._read_bundle(component, lane, number, _alone)
        starts = np.cumsum([0, *(len(p) for p in made[:-1])], dtype=np.int64)
        if lasts and shares:
            self._mapped.add(component)
            return Bundle(made, starts, bad, out, content, dataset.check, shard.astype(np.int64))
        return Bundle(made, starts, bad, out, content, owns=not lasts)

    def _joined(
        self, pieces: Sequence[Piece], known: Sequence[npt.NDArray[Any]], lasts: bool, *, copied: bool
    ) -> tuple[pa.RecordBatch, int]:
        """The pieces and what is known of their rows as one group, and its key: of what lasts as views, else in memory of its own where
        it has to be `copied`."""
        digest = xxhash.xxh3_64() if self._keys else None
        arrays = []
        for number, field in enumerate(self.made_schema):
            if digest is not None:
                digest.update(field.name.encode())
            if number < len(self.schema):
                arrays.append(joined(pieces, number, field.type, digest, lasts=lasts, copied=copied, lists=self._views))
                continue
            arrays.append(to_arrow(np.ascontiguousarray(known[number - len(self.schema)])))
            if digest is not None:
                hash_array(digest, arrays[-1])
        group = pa.RecordBatch.from_arrays(arrays, names=self.made_schema.names)
        return group, 0 if digest is None else key(digest.intdigest())

    def _pieces(self, component: int, unit: I64, row: I64, share: Share) -> Read:
        """The rows in pieces that follow one another, the errors of those that could not be read, and whether all of them last."""
        border = np.flatnonzero((np.diff(unit) != 0) | (np.diff(row) != 1)) + 1
        starts = np.concatenate([[0], border]).astype(np.int64)
        if len(starts) > _MANY_RUNS and len(np.unique(unit)) < len(starts):
            share(())
            group, bad = self._gather(component, unit, row)
            return [whole(group)], bad, False
        return self._slices(component, unit, row, starts, np.append(border, len(row)), share)

    def _slices(self, component: int, unit: I64, row: I64, starts: I64, stops: npt.NDArray[Any], share: Share) -> Read:
        """Runs of neighbouring rows, each a slice of its unit; which could not be read; and whether all of them last."""
        looked: set[int] = set()
        runs = list(zip(starts.tolist(), stops.tolist(), strict=True))
        if self._lasting.look((component, int(unit[0]))):
            share(())
            return self._runs(component, unit, row, runs, looked)  # there is hardly anything to read
        # neighbours of one unit in one job: else two threads wait for one reading
        firsts = np.append(np.flatnonzero(np.diff(unit[starts], prepend=-1)), len(starts))
        cuts = firsts[np.linspace(0, len(firsts) - 1, min(len(firsts) - 1, _JOBS) + 1).astype(int)]
        found = share([partial(self._runs, component, unit, row, runs[a:b], looked) for a, b in pairwise(cuts.tolist())])
        pieces = [piece for made, _, _ in found for piece in made]
        return pieces, {place: why for _, bad, _ in found for place, why in bad.items()}, all(lasts for _, _, lasts in found)

    def _runs(self, component: int, unit: I64, row: I64, runs: Sequence[tuple[int, int]], looked: set[int]) -> Read:
        pieces: list[Piece] = []
        bad: dict[int, ZephonError] = {}
        lasts, shares = True, self.datasets[component].shares_files
        for start, stop in runs:
            number, first = int(unit[start]), int(row[start])
            last = first + stop - start
            try:
                found = self._lasting_unit(component, number, looked)
                lasts = lasts and found is not None
                if found is not None:
                    pieces += cut(found, first, last)
                    continue
                # nobody else needs any of a whole unit, so it can stay where it is
                alone = last - first == int(self.datasets[component].units.rows[number])
                found = [Block(g, keep=alone and not shares) for g in self._unit(component, number, last - first)]
                parts = cut(found, first, last)
                pieces += parts if alone or shares else map(apart, parts)
                if self._taken is not None and not alone:
                    self._taken.add((component, number), last - first, int(self.datasets[component].units.rows[number]))
            except DataError as error:
                got, wrong = self._salvage(component, number, first, last, error)
                pieces += map(whole, got)
                bad.update({start + offset: why for offset, why in wrong.items()})
        return pieces, bad, lasts

    def _gather(self, component: int, unit: I64, row: I64) -> tuple[pa.RecordBatch, dict[int, ZephonError]]:
        """Rows of small units that come again and again (a data set with fewer rows than a bundle)."""
        parts: list[pa.RecordBatch] = []
        which, place, held = np.empty_like(row), row.copy(), 0
        bad: dict[int, ZephonError] = {}
        for number in np.unique(unit):
            here = np.flatnonzero(unit == number)
            size = int(self.datasets[component].units.rows[number])
            try:
                group = groups.concat(self._unit(component, int(number), 0))
            except DataError as error:
                found, wrong = self._salvage(component, int(number), 0, size, error)
                group = groups.concat(found)
                bad.update({int(h): wrong[r] for h, r in zip(here, row[here].tolist(), strict=True) if r in wrong})
            held += group.nbytes
            if held > _ONE_PIECE:  # units can be much larger than what is drawn from them
                group, place[here] = groups.take(group, row[here]), np.arange(len(here))
            which[here] = len(parts)
            parts.append(group)
        return take_from(parts, which, place, self.schema), bad

    def _lasting_unit(self, component: int, number: int, looked: set[int]) -> list[Block] | None:
        """A unit whose memory lasts, so that views of it may be handed on; None: it is no such unit. Raises `DataError`.

        Args:
            looked: shards of the data set that are known to be as they were listed; this one's is added.
        """
        dataset = self.datasets[component]
        shard = int(dataset.units.shard[number])
        if (component, shard) in self._fleeting:
            return None
        kept = self._lasting.look((component, number))
        if kept is not None:
            if shard not in looked and not dataset.in_memory:
                dataset.check((shard,))  # it may be kept from before the file was replaced
                looked.add(shard)
            return kept
        if not dataset.may_last(number):
            return None

        def read() -> list[Block] | None:
            made = self._read(component, number, 0, None, views=True)
            if dataset.lasts(number, made):
                return [Block(group, keep=True) for group in made]
            self._fleeting.add((component, shard))
            return None

        looked.add(shard)
        return self._lasting.get((component, number), read)

    def _unit(self, component: int, number: int, wanted: int) -> list[pa.RecordBatch]:
        if wanted == int(self.datasets[component].units.rows[number]):
            return self._read(component, number, 0, None)  # nobody else needs any of it
        return self.units.get((component, number), lambda: self._read(component, number, 0, None))

    def _read(self, component: int, number: int, start: int, stop: int | None, *, views: bool = False) -> list[pa.RecordBatch]:
        made = self.datasets[component].read(number, self.columns[component], start, stop, views=views)
        return [self._conform(group, component) for group in made]

    def _conform(self, group: pa.RecordBatch, component: int) -> pa.RecordBatch:
        arrays = []
        for wanted in self.schema:
            index = group.schema.get_field_index(wanted.name)
            if index < 0:
                arrays.append(pa.nulls(len(group), wanted.type))
                continue
            found = group.column(index)
            try:
                # as text: equal types may name the items of their lists differently, and worker processes get the schema's names
                fits = str(found.type) == str(wanted.type) or stands_for(found.type, wanted.type)
                arrays.append(found if fits else found.cast(wanted.type))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise DataError(f"column {wanted.name!r} is {found.type} here and {wanted.type} elsewhere: {error}") from error
        if not arrays:
            raise RecipeError(f"data set {self.datasets[component].name!r} has none of the columns that the pipeline needs")
        return pa.RecordBatch.from_arrays(arrays, names=self.schema.names)

    def _salvage(
        self, component: int, number: int, start: int, stop: int, error: ZephonError
    ) -> tuple[list[pa.RecordBatch], dict[int, ZephonError]]:
        """The rows [start, stop) of a unit that does not read as a whole: by halves, down to the rows at fault.

        A unit that can only be read whole is lost whole.
        """
        nulls = pa.RecordBatch.from_arrays([pa.nulls(stop - start, f.type) for f in self.schema], schema=self.schema)
        if not self.datasets[component].splittable:
            return [nulls], {i: self._placed(error, component, number, start + i) for i in range(stop - start)}
        try:
            return self._read(component, number, start, stop), {}
        except DataError as narrower:
            if stop - start == 1:
                return [nulls], {0: self._placed(narrower, component, number, start)}
            middle = (start + stop) // 2
            left, bad = self._salvage(component, number, start, middle, narrower)
            right, more = self._salvage(component, number, middle, stop, narrower)
            return left + right, bad | {i + middle - start: why for i, why in more.items()}

    def _placed(self, error: ZephonError, component: int, number: int, row: int) -> ZephonError:
        dataset = self.datasets[component]
        shard = dataset.shards[int(dataset.units.shard[number])].path
        where = error.where
        placed = DataError(error.message, hint=error.hint, trace=error.trace)
        place = type(where)(dataset=dataset.name, shard=shard, row=int(dataset.row_of(number, row)))
        placed.where = (
            place if where.row is None else type(where)(dataset=dataset.name, shard=shard, row=place.row).within(where)
        )
        return placed


def _alone(jobs: Sequence[Callable[[], Read]]) -> list[Read]:
    return [job() for job in jobs]


def _count_failures(failed: list[tuple[int, Failure]], picks: Sequence[Pick], losses: Losses) -> None:
    """Note what couldn't be read, with its place in the chunk, in the order of the chunk; and what could be read in between."""
    if not failed:
        return
    read = np.sort(np.concatenate([pick.place for pick in picks])) if picks else np.zeros(0, dtype=np.int64)
    streak = losses.streaks.setdefault("source", Streak())
    seen = 0
    for place, failure in sorted(failed, key=lambda item: item[0]):
        before = int(np.searchsorted(read, place))
        if before > seen:
            streak.work()
        seen = before
        losses.fail(failure)
    if len(read) > seen:
        streak.work()
