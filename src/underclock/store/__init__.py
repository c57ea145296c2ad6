"""Records to files and back. Nothing here computes; everything here distrusts its input."""

from underclock.store.documents import kind_of, read_document, write_document
from underclock.store.files import check_output, write_text
from underclock.store.given import (
    SampleSource,
    as_record,
    load,
    read_samples,
    save,
)
from underclock.store.merged import is_merged, joined, merge, read_parts
from underclock.store.samples import SampleFile
from underclock.store.tables import read_table
