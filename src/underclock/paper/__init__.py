"""paper: the whole study of arXiv 2601.08539 on a simulated GPU, beside what the paper reports.

* `published`: the paper's numbers; the test, never an input
* `study`: search, choose, validate, carry over, through the stages that everyone uses
* `choices`: clocks per kernel beside Table 1
* `elsewhere`: the discovered clocks on other batches and under tensor parallelism
* `comparison`: every quoted number with ours
* `files`: what it leaves on disk
* `records`: its nouns, in percent as the paper prints them
* `tables`, `page`: what a person reads; the drawings as data (`charts`), on the page (`figures`)
  and as SVG (`svg`)
"""

from underclock.paper.files import Outputs, run_paper
from underclock.paper.study import PAPERS_GPU, run_study

__all__ = ["PAPERS_GPU", "Outputs", "run_paper", "run_study"]
