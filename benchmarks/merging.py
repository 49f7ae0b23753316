"""Two results files of one machine in one: row by row, so that a long measurement can be made in parts."""

from typing import Any

from .cases import title
from .results_file import ResultsError

__all__ = ["merged"]

Row = dict[str, Any]

# Returns the labels by which two rows are the same measurement.
_KEYS = {
    "rows": ("op", "variant", "direction", "dtype", "shape", "implementation"),
    "host": ("op", "variant", "direction", "dtype", "shape", "implementation"),
    "build": ("implementation", "what", "cache"),
    "lenet5": ("backend", "recipe", "seed", "epochs"),
}
_SAME = ("gpu", "torch", "cupy", "nvrtc", "triton")


def merged(old: Row, fresh: Row) -> Row:
    """The old document, with each row that has been measured again replaced in its place, and new rows after.

    A section that has rows of both keeps the old rows' record under ``"section@date"``, and those rows name it in
    "section"; it goes when its last row has been replaced.

    Raises:
        ResultsError: they are of different machines or versions, and would not compare.
    """
    for key in _SAME:
        before, now = old["environment"].get(key), fresh["environment"].get(key)
        if before != now:
            raise ResultsError(
                f"--merge: the file was measured with {key} {before}, and this is {now}; name another file with --out"
            )
    known = {key: value for key, value in fresh["environment"].items() if value is not None}
    document = {**fresh, "environment": {**old["environment"], **known}}
    failed = _failed(fresh)
    for name in _KEYS:
        document[name] = _merged_rows(name, old, fresh, failed)
    measured_again = old["sections"].keys() & fresh["sections"].keys()
    records = {**old["sections"], **{_dated(old, s): old["sections"][s] for s in measured_again}, **fresh["sections"]}
    used = {row.get("section") for name in _KEYS for row in document[name]}
    document["sections"] = {s: records[s] for s in sorted(records) if s in used or "@" not in s}
    document["skipped"] = _merged_skipped(old, fresh, document)
    return document


def section_of(name: str, row: Row) -> str:
    """The section that a row of the list `name` is measured in."""
    return {"rows": f"{row.get('op')}.device", "host": f"{row.get('op')}.host"}.get(name, name)


def _dated(document: Row, section: str) -> str:
    return f"{section}@{document['sections'][section]['date']}"


def _key(name: str, row: Row) -> tuple[Any, ...]:
    return tuple(str(row[key]) for key in _KEYS[name])


def _failed(document: Row) -> set[tuple[str, str]]:
    return {(entry["section"], entry["what"]) for entry in document["skipped"] if entry["failed"]}


def _merged_rows(name: str, old: Row, fresh: Row, failed: set[tuple[str, str]]) -> list[Row]:
    new = {_key(name, row): row for row in fresh[name]}
    rows = []
    for row in old[name]:
        section = section_of(name, row)
        again = new.pop(_key(name, row), None)
        if again is not None:
            rows.append(again)
        # An implementation that is wrong now loses its earlier time.
        elif "op" not in row or (section, f"{row['implementation']}, {title(row)}") not in failed:
            of_both = section in old["sections"] and section in fresh["sections"]
            rows.append({**row, "section": _dated(old, section)} if of_both and "section" not in row else row)
    return rows + list(new.values())


def _merged_skipped(old: Row, fresh: Row, document: Row) -> list[Row]:
    """Returns what is still missing: cases in which this run has failed, and cases without a row."""
    there: set[tuple[str, str]] = set()
    for name in _KEYS:
        for row in document[name]:
            section = section_of(name, row)
            if "op" in row:
                there |= {(section, title(row)), (section, f"{row['implementation']}, {title(row)}")}
            run = "{backend}, {recipe}, seed {seed}" if name == "lenet5" else "{implementation}"
            there.add((section, run.format(**row)))
    told = {(entry["section"], entry["what"]) for entry in fresh["skipped"]}
    before = [entry for entry in old["skipped"] if (entry["section"], entry["what"]) not in there | told]
    now = [entry for entry in fresh["skipped"] if entry["failed"] or (entry["section"], entry["what"]) not in there]
    return before + now
