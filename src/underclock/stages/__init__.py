"""What Underclock does, one module per stage; each joins pure maths to hardware and files.

trace → measure → plan → validate → report, and beside them: score (a plan against a full table),
latency (how long changes of clocks take), doctor (what this machine and the simulator can do), demo
(all of it on the simulated GPU). What `measure`, `refine` and `validate` run is in `campaign`.
Stages print nothing and meet through files.
"""
