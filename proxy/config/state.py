"""Where Narrows keeps its files by default."""

from platformdirs import user_state_path


def default_store() -> str:
    """The URL of the store where none is set: a file in the user's state directory."""
    return f"sqlite:///{user_state_path('narrows', appauthor=False) / 'narrows.db'}"
