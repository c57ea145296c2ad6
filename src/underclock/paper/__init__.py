"""paper: the whole study of arXiv 2601.08539 on a simulated GPU, beside what the paper reports.

* `published`: the paper's numbers; ours are compared with them and never fitted to them
* `study`: search, choose, validate and transfer, through the functions that everyone uses
* `comparison`: Table 1 with our clocks, and every number quoted from the paper with ours
* `records`: the study's nouns, with changes in percent as the paper prints them
* `charts`: the drawings as data
* `outputs`: the page and the files that a study is written to
* `command`: ``underclock paper``, and what the terminal shows
"""
