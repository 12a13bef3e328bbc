"""`narrows serve`, from the greeting to the last reply, and what it prints for people."""
