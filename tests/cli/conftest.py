import pytest
from typer.testing import CliRunner

from interlace.cli.main import app


@pytest.fixture
def run():
    """Runs `interlace ...` in this process; gives (exit status, standard output, standard error)."""

    def run(*words, input=None, env=None):
        result = CliRunner().invoke(app, list(words), input=input, env=env, catch_exceptions=False)
        return result.exit_code, result.stdout, result.stderr

    return run
