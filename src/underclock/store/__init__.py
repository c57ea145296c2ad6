"""Records to files and back. Nothing here computes; everything here distrusts its input."""

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
