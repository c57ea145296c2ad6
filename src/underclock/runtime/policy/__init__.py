"""What the machine is to do on a job: pure.

* `policy`: whichever of these decides; `guard`: takes a plan back that is slower than promised
* `arms`: ways of choosing clocks that take turns; `job`: the ranks of a job together, by `parts`
"""
