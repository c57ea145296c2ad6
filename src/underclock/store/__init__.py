"""Records to files and back. Nothing here computes; everything here distrusts its input.

* `files`: where output may go, and writing it whole or not at all
* `given`: a record, or the file that holds it
* `documents`: one record as one JSON file (step, plan, validation)
* `tables`: a sweep somebody measured, as CSV
* `samples`: our own measurements, in SQLite (`database`), appended one by one
"""

from underclock.store.documents import kind_of, read_document, write_document
from underclock.store.files import check_output, write_text
from underclock.store.given import SampleSource, as_record, is_samples, load, read_samples, save
from underclock.store.samples import SampleFile
from underclock.store.tables import read_table

__all__ = [
    "SampleFile",
    "SampleSource",
    "as_record",
    "check_output",
    "is_samples",
    "kind_of",
    "load",
    "read_document",
    "read_samples",
    "read_table",
    "save",
    "write_document",
    "write_text",
]
