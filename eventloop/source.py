"""Where the data of an epoch comes from: each loader's place in it, and how a resumed run finds its own again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, Generic, TypeVar

from .limits import sized
from .loaders import generators, set_epoch, stateful
from .log import logger
from .parts import Position
from .rng import RandomStates, states_of

B = TypeVar("B")
END: Final[Any] = object()
UNREAD: Final[Any] = object()


class Reading(Generic[B]):
    """One `batches()`: a loader's iterator, read at most one batch ahead.

    Args:
        loader: whose iterator it is.
        source: the iterator; None: the body was done with it before the checkpoint.
        position: learns what has been drawn.
        place: which `batches()` of the epoch it is, from 0.
        saves: whether there may be checkpoints, which want the loader's state.
    """

    def __init__(
        self, loader: Iterable[B], source: Iterator[B] | None, position: Position, place: int, saves: bool
    ) -> None:
        self.over = source is None
        self.left = self.over  # the body is done with it, or it has come to its end
        self.loader, self._source, self._position, self._place, self._saves = loader, source, position, place, saves
        self._generators = generators(loader)
        self._ahead = UNREAD  # a batch read ahead
        self._before: tuple[Any, list[Any]] = (None, [])  # how the loader stood before that

    @property
    def drawn(self) -> int:
        """The batches that the body has had, in earlier sittings too."""
        return self._position.batches[self._place] or 0

    def peek(self) -> B:
        """The batch that comes next, or END. A checkpoint made before it is taken knows nothing of it.

        What its dataset drew from global generators is not taken back: a resumed run draws it once more. This matters
        with updates of one's own while accumulating, and not with a `SeededDataset`.
        """
        if self._ahead is UNREAD:
            self._before = self._stands()
            self._ahead = next(self._source, END)  # type: ignore[arg-type]  # there is one, unless it is over
        return self._ahead  # type: ignore[no-any-return]  # a batch

    @property
    def at_end(self) -> bool:
        """Whether it is known that no batch follows."""
        return self._ahead is END

    def take(self) -> B:
        """The batch that comes next, or END."""
        batch = next(self._source, END) if self._ahead is UNREAD else self._ahead  # type: ignore[arg-type]  # the same
        self._ahead = UNREAD
        if batch is END:
            self._position.batches[self._place], self.over = None, True
        else:
            self._position.batches[self._place] = self.drawn + 1
        return batch

    def leave(self) -> None:
        """The body is done with it: the iterator, with its workers, and a batch read ahead are let go."""
        self.left, self._source = True, iter(())
        if self._ahead is not UNREAD:
            self._ahead = END

    def drop(self) -> None:
        """The epoch is over, and with it what had been read ahead."""
        self._ahead = UNREAD

    def at_hand(self) -> tuple[Any, list[Any]]:
        """The loader's own state or None, and those of its generators, at the batch in hand."""
        dropped = self._position.completed  # the epoch is over, and whatever had been read ahead in it
        return self._stands() if self._ahead is UNREAD or dropped else self._before

    def _stands(self) -> tuple[Any, list[Any]]:
        if not self._saves:
            return None, []
        state = self.loader.state_dict() if stateful(self.loader) else None  # type: ignore[attr-defined]  # stateful
        return state, states_of(self._generators)


class Source:
    """Opens the loaders of an epoch.

    In the midst of an epoch that a checkpoint has cut a loader with a state of its own goes on by it, one whose sampler
    has ``skip`` is skipped by index, any other is wound forward; an iterator can be neither.
    What a dataset draws in a worker after a skip is what the uncut run drew only if it is a `SeededDataset`.

    Args:
        position: where in the epoch the run stands.
        random: the random states that a resume puts back.
    """

    def __init__(self, position: Position, random: RandomStates) -> None:
        self._position, self._random = position, random
        self._readings: dict[int, Reading[Any]] = {}  # by place; of the last epoch, where this one has come to none yet
        self._states: dict[int, Any] = {}  # the checkpoint's, for loaders that have not come yet
        self._due: list[int | None] = []  # what had been drawn before the checkpoint, by place
        self._place = 0
        self._asked = False
        self._ended: list[Any] = []  # loaders that were given the state of an epoch's end

    def begin_epoch(self) -> None:
        """The next loader is the first of an epoch, of a new one or of the one that a checkpoint has cut."""
        self._due, self._place = list(self._position.batches), 0
        for reading in self._readings.values():
            reading.drop()

    def open(self, loader: Iterable[B], epoch: int, *, saves: bool) -> Reading[B]:
        """The loader's iterator, where a resumed run stands.

        Args:
            loader: of this epoch.
            epoch: from 1.
            saves: whether there may be checkpoints.
        """
        position, place = self._position, self._place
        self._take_over()
        for earlier in range(place):
            if self._readings[earlier].left:
                position.batches[earlier] = None
        position.resumed_at = None
        set_epoch(loader, epoch)
        self._random.take(place, loader, epoch)
        state, source = self._states.pop(place, None), None
        if not stateful(loader):
            state = None
        if place >= len(self._due):
            position.batches[place:] = [0]
            source = self._fresh(loader, state)
        elif (drawn := self._due[place]) is None:
            self._pass_over(loader, state)
        else:
            with self._random.rewound():
                source, told = _resumed(loader, state, drawn, epoch)
            position.restored.append(told)
        self._place = place + 1
        self._readings[place] = Reading(loader, source, position, place, saves)
        return self._readings[place]

    def _take_over(self) -> None:
        """A checkpoint asks here for the loaders' states from now on."""
        if not self._asked:
            self._asked, self._states = True, dict(self._position.loaders())
            self._position.loaders = lambda: {**self._at_hand(0), **self._states}
            self._random.loaders = lambda: self._at_hand(1)

    def _at_hand(self, which: int) -> dict[int, Any]:
        return {place: reading.at_hand()[which] for place, reading in self._readings.items()}

    def _fresh(self, loader: Iterable[B], state: Any) -> Iterator[B]:
        self._random.begin_epoch()
        if state is not None and all(reading.loader is not loader for reading in self._readings.values()):
            self._pass_over(loader, state)
        ended, self._ended = self._ended, [one for one in self._ended if one is not loader]
        source = iter(loader)
        return source if len(ended) == len(self._ended) else _next_epoch(loader, source)

    def _pass_over(self, loader: Any, state: Any) -> None:
        """Let a loader stand where its last epoch has ended."""
        with self._random.rewound():
            if state is not None:
                loader.load_state_dict(state)
                if _is_data_loader(loader):
                    iter(loader)  # uses the state up; the next one draws as much as in a run that was not cut
                else:
                    self._ended.append(loader)


def _resumed(loader: Any, state: Any, drawn: int, epoch: int) -> tuple[Iterator[Any], str]:
    """The loader's iterator behind so many batches, and how it got there."""
    if state is not None:
        loader.load_state_dict(state)
        return iter(loader), f"the loader's own state, at batch {drawn} of epoch {epoch}"
    source: Iterator[Any]
    length = sized(loader)
    if hasattr(loader, "__next__") and iter(loader) is loader:
        if drawn:
            logger().warning(
                f"{drawn} batches of epoch {epoch} were made before the checkpoint, but loop.batches() was given an "
                f"iterator, which cannot be wound forward: where its data stands is unknown; pass a loader"
            )
        return iter(loader), f"an iterator, taken as it is, {drawn} batches into epoch {epoch}"
    if (found := _skippable(loader)) is not None:
        sampler, size = found
        sampler.skip(drawn * size)
        source, passed = iter(loader), drawn if length is None else min(drawn, length)
        told = f"the sampler skipped {drawn * size} indices, {drawn} batches, of epoch {epoch}"
    else:
        source = iter(loader)
        passed = sum(1 for _ in zip(range(drawn), source, strict=False))
        told = f"wound the loader forward over {passed} batches of epoch {epoch}"
        logger().warning(told)
    if passed < drawn:
        logger().warning(f"{drawn} were made before the checkpoint: the loader is another one, and data is left out")
    return source, told


def _next_epoch(loader: Iterable[B], source: Iterator[B]) -> Iterator[B]:
    """Some loaders, given the state of an epoch's end, first say once more that it has ended."""
    first = next(source, END)
    if first is END:
        source = iter(loader)
    else:
        yield first
    yield from source


def _skippable(loader: Any) -> tuple[Any, int] | None:
    """A sampler that can be told to begin later, and how many of its indices make a batch."""
    from torch.utils.data import BatchSampler

    if not _is_data_loader(loader):
        return None
    batches = loader.batch_sampler
    if batches is not None and type(batches) is not BatchSampler:
        return None  # it may use indices in its own way
    sampler, size = (loader.sampler, 1) if batches is None else (batches.sampler, batches.batch_size)
    return (sampler, size) if callable(getattr(sampler, "skip", None)) else None


def _is_data_loader(loader: object) -> bool:
    from torch.utils.data import DataLoader

    return isinstance(loader, DataLoader)
