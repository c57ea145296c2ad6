"""Records to files and back. Nothing here computes; everything here distrusts its input."""

from underclock.store.documents import (
    SampleSource,
    as_record,
    kind_of,
    load,
    read_document,
    read_samples,
    save,
    write_document,
)
from underclock.store.files import check_output, write_text
from underclock.store.merged import is_merged, joined, merge, read_parts
from underclock.store.samples import SampleFile
from underclock.store.tables import read_table
