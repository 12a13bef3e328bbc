"""Sessions made by rule, for what recordings do not hold: `narrows generate`."""
