"""What conversations have cost, as `narrows usage` and the pages report it, from the bills in the store."""
