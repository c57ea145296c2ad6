"""What a samples file holds: rows in, and out again with a check that none is missing or changed.

Nothing here begins or ends a transaction: what belongs together is the caller's to say.
"""

import sqlite3
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from underclock.records import MixSample, Sample
from underclock.store.database import damaged
from underclock.store.rows import RowReader, checksum, mixed_row_of, mixed_sample, row_of


class Counts(NamedTuple):
    """How many samples were written, alone and in company, and the GPU time all took."""

    samples: int
    mixed: int
    gpu_s: float


@dataclass(frozen=True, slots=True)
class Contents:
    """The rows of an open samples file.

    Every method raises `sqlite3.Error` where SQLite does, and `DataError` for what is not as it was
    written.

    Attributes:
        path: Of the file, for errors to name.
        connection: To it.
    """

    path: Path
    connection: sqlite3.Connection

    def progress(self) -> Counts:
        """Read how far the file is."""
        row = self.connection.execute(
            "SELECT samples, mixed, gpu_s, checksum FROM progress"
        ).fetchone()
        if row is None or row[3] != checksum(*row[:3]):
            raise damaged(self.path, "the number of its samples is not as it was written")
        return Counts(*row[:3])

    def set_progress(self, samples: int, mixed: int, gpu_s: float) -> None:
        """Say how far the file is.

        Args:
            samples: How many it holds, of isolated kernels and of whole steps.
            mixed: How many it holds in company.
            gpu_s: The GPU's time that all took.
        """
        values = (samples, mixed, float(gpu_s))
        self.connection.execute(
            "UPDATE progress SET samples = ?, mixed = ?, gpu_s = ?, checksum = ?",
            (*values, checksum(*values)),
        )

    def insert(self, number: int, sample: Sample, *, in_situ: bool) -> None:
        """Write a sample as the row of a number; it is not counted yet.

        Args:
            number: Of the row: 1, 2, …
            sample: The measurement.
            in_situ: Whether it is of the whole step rather than an isolated kernel.
        """
        row = row_of(number, sample, in_situ=in_situ)
        names, marks = ", ".join(row), ", ".join("?" * len(row))
        self.connection.execute(
            f"INSERT INTO samples ({names}) VALUES ({marks})",  # noqa: S608 - our own names
            tuple(row.values()),
        )

    def insert_mixed(self, number: int, sample: MixSample) -> None:
        """Write a measurement in company as the row of a number; it is not counted yet."""
        row = mixed_row_of(number, sample)
        self.connection.execute("INSERT INTO mixed VALUES (?, ?, ?, ?)", row)

    def clear(self) -> None:
        """Remove every measurement; what was counted is the caller's to set."""
        self.connection.execute("DELETE FROM samples")
        self.connection.execute("DELETE FROM mixed")

    def samples(self, count: int, kernels: Collection[str]) -> dict[str, tuple[Sample, ...]]:
        """Return the samples of isolated kernels and of whole steps, in the order taken.

        Args:
            count: How many were written.
            kernels: Names of the kernels they may be of.

        Returns:
            By scope: ``"kernel"`` and ``"step"``.
        """
        samples: dict[str, list[Sample]] = {"kernel": [], "step": []}
        rows = self.connection.execute("SELECT * FROM samples ORDER BY number")
        try:
            reader = RowReader([column[0] for column in rows.description])
        except KeyError as exc:
            raise damaged(self.path, f"its samples lack {exc}") from exc
        number = 0
        for number, row in enumerate(rows, 1):
            try:
                scope, sample = reader.sample(number, row)
            except ValueError as exc:
                raise damaged(self.path, exc) from exc
            if scope == "kernel" and sample.kernel not in kernels:
                raise damaged(self.path, f"sample {number} is of no kernel of the step")
            samples[scope].append(sample)
        if number != count:
            raise damaged(self.path, f"{count} samples were written, {number} are there")
        return {scope: tuple(taken) for scope, taken in samples.items()}

    def mixed(self, count: int, kernels: Collection[str]) -> tuple[MixSample, ...]:
        """Return the measurements in company, in the order taken.

        Args:
            count: How many were written.
            kernels: Names of the kernels they may be of.
        """
        samples = []
        rows = self.connection.execute(
            "SELECT number, once, body, checksum FROM mixed ORDER BY number"
        )
        for number, row in enumerate(rows, 1):
            try:
                sample = mixed_sample(number, row)
            except ValueError as exc:
                raise damaged(self.path, exc) from exc
            if sample.kernel and sample.kernel not in kernels:
                raise damaged(self.path, f"measurement {number} is of no kernel of the step")
            samples.append(sample)
        if len(samples) != count:
            raise damaged(
                self.path,
                f"{count} measurements in company were written, {len(samples)} are there",
            )
        return tuple(samples)

    def notes(self) -> tuple[str, ...]:
        """Return what a reader of the samples must know, in the order it was told."""
        rows = self.connection.execute(
            "SELECT sentence, checksum FROM notes ORDER BY rowid"
        ).fetchall()
        if any(written != checksum(sentence) for sentence, written in rows):
            raise damaged(self.path, "a note in it is not as it was written")
        return tuple(sentence for sentence, _written in rows)

    def add_note(self, sentence: str) -> None:
        """Add what a reader of the samples must know."""
        self.connection.execute("INSERT INTO notes VALUES (?, ?)", (sentence, checksum(sentence)))
