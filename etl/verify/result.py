"""What the check of one line of work found: a task publishes it, the driver reads it."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import pyarrow as pa

from etl.errors import DataError, EnvironmentFailure
from etl.formats import parquet_tables
from etl.storage.atomic import publish_bytes
from etl.storage.place import Place, json_bytes
from etl.verify.findings import Finding
from etl.verify.join import CONTENTS, TABLES, content_buckets, key_buckets, write_buckets

MAY_BE_NULL = {"split", "columns"}  # columns


def result_place(results: Place, line: int) -> Place:
    """Where the result of a line of work is."""
    return results / f"line-{line:06d}.json"


def table_place(results: Place, name: str, line: int) -> Place:
    """A table of a line's result, by bucket: of the schema that `etl.verify.join.TABLES` has for ``name``."""
    return results / f"{name}-{line:06d}.parquet"


@dataclass
class LineResult:
    """What was found; ``tables`` has what is compared across lines, by the names of `etl.verify.join.TABLES`.

    ``unreadable`` counts slices, parts and lists whose content is not known. ``slices`` are the facts of slices, None
    of one whose labels are not known. ``live`` counts the live images of packs: ``images``, ``bytes``, and by class and
    by split. ``rows`` are those of each table that was published, by bucket.
    """

    findings: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    unreadable: Counter[str] = field(default_factory=Counter)
    slices: list[dict[str, Any] | None] = field(default_factory=list)
    live: Counter[str] = field(default_factory=Counter)
    rows: dict[str, list[int]] = field(default_factory=dict)
    tables: dict[str, list[pa.Table]] = field(default_factory=dict)

    def find(self, what: str, name: str, line: str) -> None:
        """Add a finding, once."""
        if (finding := Finding(what, name, line)) not in self.findings:
            self.findings.append(finding)

    def find_error(self, what: str, name: str, place: Place, error: Exception) -> None:
        """Add a finding about a file that cannot be read."""
        is_missing = isinstance(error, FileNotFoundError)
        self.find(what, name, f"{place} is missing" if is_missing else str(error).splitlines()[0])

    def require_sha256(self, what: str, name: str, place: Place, sha256: str) -> bool:
        """Whether a file, which is counted then, has this SHA-256; if not, that is a finding."""
        try:
            if place.sha256() != sha256:
                raise DataError(f"{place} has another SHA-256 than the one recorded")
            self.counts.update(files=1, other_bytes=place.info().size)
        except (DataError, FileNotFoundError) as error:
            self.find_error(what, name, place, error)
            return False
        return True

    def read(
        self, what: str, name: str, place: Place, schema: pa.Schema, rows: tuple[int, int] | None = None
    ) -> pa.Table | None:
        """A table, or ``rows`` of it; None, and a finding, if it cannot be read or is not of this schema."""
        try:
            table = parquet_tables.read_range(place, *rows) if rows else parquet_tables.read_table(place)
            if not table.schema.remove_metadata().equals(schema):
                raise DataError(f"{place} has other columns than this table should have")
            for column in schema.names:
                if table[column].null_count and column not in MAY_BE_NULL:
                    raise DataError(f"{place} has rows without {column}")
            return table
        except (DataError, FileNotFoundError, pa.ArrowException) as error:
            self.find_error(what, name, place, error)
            return None

    def keep(self, name: str, table: pa.Table) -> None:
        """Keep rows for the driver's comparison."""
        schema = TABLES[name]
        self.tables.setdefault(name, []).append(table.select(schema.names).cast(schema))

    def publish(self, results: Place, staging: Place, line: int, buckets: int) -> None:
        """Publish the tables, cut to so many buckets, then the rest."""
        for name, tables in self.tables.items():
            table = pa.concat_tables(tables).combine_chunks()
            numbers = (content_buckets if name == CONTENTS else key_buckets)(table, buckets)
            self.rows[name] = write_buckets(table_place(results, name, line), staging, table, numbers, buckets)
        facts = {name: value for name, value in vars(self).items() if name != "tables"}
        facts["findings"] = [vars(each) for each in self.findings]
        publish_bytes(result_place(results, line), staging, json_bytes(facts))

    @classmethod
    def read_published(cls, results: Place, line: int) -> Self:
        """The result of a line, without its tables. Raises EnvironmentFailure if there is none."""
        place = result_place(results, line)
        if not place.exists():
            raise EnvironmentFailure(f"{place} is missing though the job ended; run again")
        facts = place.read_json()
        facts["findings"] = [Finding(**each) for each in facts["findings"]]
        return cls(**facts | {name: Counter(facts[name]) for name in ("counts", "unreadable", "live")})


def read_rows(folder: Place, results: Mapping[int, LineResult], name: str, bucket: int) -> pa.Table:
    """The rows of a bucket of a table, of all ``results``, by line."""
    tables = [TABLES[name].empty_table()]
    for line, result in results.items():
        rows = result.rows.get(name, ())
        if rows and rows[bucket]:
            first = sum(rows[:bucket])
            tables.append(parquet_tables.read_range(table_place(folder, name, line), first, first + rows[bucket]))
    return pa.concat_tables(tables).combine_chunks()
