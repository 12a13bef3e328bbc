"""Settings from words of the command line, as `narrows serve` reads them."""

from collections.abc import Sequence

import typer

from proxy.config import Settings, load_settings
from proxy.console.options import taking_settings


def settings_with(words: Sequence[str] = ()) -> Settings:
    """The settings of `narrows serve WORDS`. Raises ConfigurationError."""
    results: list[Settings] = []
    app = typer.Typer(add_completion=False)
    app.command()(taking_settings(lambda flags: results.append(load_settings(flags))))
    typer.main.get_command(app).main(list(words), standalone_mode=False)
    return results[0]
