"""Samples of one step, carried over to another that never ran."""

from underclock.core.transfer.carried import Carried as Carried
from underclock.core.transfer.carried import carried as carried
