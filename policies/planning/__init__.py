"""From a conversation to its plan: steps are replayed, offers are weighed, and the plan says what changes and why."""
