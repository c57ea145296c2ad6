"""What the machine is to do on a job: pure.

* `guard`: takes a plan back whose steps are slower than promised
* `arms`: ways of choosing clocks that take turns; `policy`: whichever of them decides
"""
