"""What is kept for people of the requests that pass: nothing that is sent needs it."""
