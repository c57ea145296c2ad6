"""Records to files and back. Nothing here computes; everything here distrusts its input."""

from underclock.store.database import check_output, write_text
from underclock.store.json_files import (
    SampleSource,
    as_record,
    kind_of,
    load,
    read_document,
    read_samples,
    save,
    write_document,
)
from underclock.store.samples import SampleFile, is_merged, joined, merge, read_parts
from underclock.store.tables import read_table
